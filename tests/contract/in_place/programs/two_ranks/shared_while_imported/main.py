"""Memory, locks and pipes that local modules make while they are imported are each rank's own."""

import os
import time

import makes_counter
import makes_lock
import makes_mailbox
import makes_map
import makes_pipe
import makes_value

with makes_value.VALUE.get_lock():
    makes_value.VALUE.value += 1
makes_map.MAP[0] += 1
os.write(makes_pipe.WRITE_END, b"x")
makes_mailbox.MAILBOX.put(os.environ["RANK"])
time.sleep(0.5)
print("value", makes_value.VALUE.value)
print("map", makes_map.MAP[0])
print("pipe", os.read(makes_pipe.READ_END, 10))
print("lock", makes_lock.LOCK.acquire(block=False), makes_lock.LOCK.acquire(block=False))
print("rank in the mailbox", makes_mailbox.MAILBOX.get())
print("counter", os.eventfd_read(makes_counter.COUNTER))
