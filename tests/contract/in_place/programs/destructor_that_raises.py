"""An exception in __del__ is named on stderr and ends nothing."""

import gc


class Thing:
    def __init__(self):
        self.itself = self

    def __del__(self):
        raise ValueError("in __del__")


Thing()
gc.collect()
print("goes on")
