"""The garbage collector is on, with its usual thresholds, callbacks of the script's own, and finds cycles."""

import gc
import weakref


class Thing:
    pass


print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.garbage)
gc.callbacks.append(lambda phase, info: print(phase, info["generation"]))
thing = Thing()
thing.itself = thing
reference = weakref.ref(thing)
del thing
gc.collect()
print(reference())
gc.callbacks.clear()
