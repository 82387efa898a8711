"""PYTHONFAULTHANDLER turns the stacks on."""

import ctypes
import faulthandler
import resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(faulthandler.is_enabled(), flush=True)
ctypes.string_at(0)
