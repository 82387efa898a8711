"""The collector is on, with its usual thresholds, sees objects of the script and finds cycles of them."""

import gc
import json
import sys
import weakref


class Thing:
    pass


print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.garbage)
gc.callbacks.append(lambda phase, info: print(phase, info["generation"]))
thing = Thing()
thing.itself = thing
listed = gc.get_objects()
print(any(entry is thing for entry in listed), any(entry is globals() for entry in listed))
print(any(entry is sys.modules["__main__"] for entry in listed), gc.is_tracked(json.__dict__))
print(sys.modules["__main__"] in gc.get_referrers(globals()))
del listed
reference = weakref.ref(thing)
del thing
gc.collect()
print(reference())
gc.callbacks.clear()
