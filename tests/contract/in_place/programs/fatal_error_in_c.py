"""Py_FatalError names the main thread's stack."""

import ctypes
import resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
ctypes.pythonapi.Py_FatalError(b"by hand")
