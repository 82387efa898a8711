"""So is one in a __del__ that runs at the end; the source line can't be read any more."""


class Thing:
    def __del__(self):
        raise ValueError("in __del__")


thing = Thing()
