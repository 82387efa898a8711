"""Functions registered with atexit run last first, with arguments, once each."""

import atexit
import weakref

print(atexit._ncallbacks())


class Thing:
    pass


thing = Thing()
weakref.finalize(thing, print, "finalized before functions registered earlier")
for number in range(3):
    atexit.register(print, "atexit", number, sep="=")
gone = atexit.register(print, "unregistered")
atexit.unregister(print)
atexit.register(lambda: print("after unregister"))
