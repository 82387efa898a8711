"""weakref.finalize runs at the end, last first, unless told not to."""

import weakref


class Thing:
    pass


things = [Thing() for _ in range(3)]
finalizers = [
    weakref.finalize(thing, print, "end of", number) for number, thing in enumerate(things)
]
finalizers[1].atexit = False
reference = weakref.ref(things[0], lambda _reference: print("reference to the first is dead"))
print([finalizer.alive for finalizer in finalizers])
