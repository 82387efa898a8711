"""A daemon thread may hold stdout's lock when the script ends."""

import sys
import threading


def forever():
    while True:
        sys.stdout.write("")


threading.Thread(target=forever, daemon=True).start()
sys.exit(5)
