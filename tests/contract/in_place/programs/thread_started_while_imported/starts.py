import queue
import threading
import time

QUEUE = queue.Queue()


def work():
    for number in range(1000):
        QUEUE.put(number)
        time.sleep(0.1)


THREAD = threading.Thread(target=work, daemon=True, name="worker")
THREAD.start()
