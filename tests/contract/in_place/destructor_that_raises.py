"""An exception in __del__ is named on stderr and ends nothing."""

import gc


class Thing:
    def __del__(self):
        raise ValueError("in __del__")


Thing()
gc.collect()
at_the_end = Thing()
print("goes on")
