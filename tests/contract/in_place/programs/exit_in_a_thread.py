"""sys.exit in a thread ends that thread only, silently."""

import sys
import threading

thread = threading.Thread(target=sys.exit, args=(9,))
thread.start()
thread.join()
print("goes on")
