"""What __main__ defines is pickled by name and read back as itself."""

import copyreg
import pickle
import sys


class Thing:
    def __init__(self, value):
        self.value = value


def function():
    return 5


again = pickle.loads(pickle.dumps([Thing(1), Thing, function]))
print(again[0].value, again[1] is Thing, again[2] is function, pickle.dumps(Thing))
print(
    pickle.whichmodule(function, "function"),
    sys.modules["__main__"].Thing is Thing,
    copyreg.__name__,
)
