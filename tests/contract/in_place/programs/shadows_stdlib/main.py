"""Local modules win over the standard library's, those too that a fork server imports."""

import array
import ctypes
import json
import pickle
import resource
import select
import signal
import socket
import struct

for module in (array, ctypes, json, pickle, resource, select, signal, socket, struct):
    print(module.__name__, module.__file__, getattr(module, "WHO", None))
