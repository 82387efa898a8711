"""A segmentation fault with faulthandler: the script's frames only."""

import ctypes
import faulthandler
import resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
faulthandler.enable()


def crash():
    ctypes.string_at(0)


crash()
