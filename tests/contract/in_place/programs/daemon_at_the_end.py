"""A daemon thread is not waited for, however it sleeps."""

import threading
import time


def forever():
    while True:
        time.sleep(0.01)


for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("main", threading.active_count())
