"""Objects of the script are seen by the collector, and so is the script's module."""

import gc
import json
import sys


class Thing:
    pass


thing = Thing()
listed = gc.get_objects()
print(any(entry is thing for entry in listed), any(entry is globals() for entry in listed))
print(any(entry is sys.modules["__main__"] for entry in listed), gc.is_tracked(json.__dict__))
print(sys.modules["__main__"] in gc.get_referrers(globals()))
