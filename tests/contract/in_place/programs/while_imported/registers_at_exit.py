import atexit
import weakref


class Thing:
    pass


VALUE = 1
THING = Thing()
atexit.register(print, "module's")
weakref.finalize(THING, print, "module's finalizer")
