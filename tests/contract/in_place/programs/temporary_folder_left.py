"""Temporary files and folders that are left are removed at the end, with a warning for folders."""

import atexit
import os
import tempfile
import warnings

os.mkdir("left")
tempfile.tempdir = "left"
warnings.simplefilter("always")
warnings.showwarning = lambda message, kind, *_place: print(kind.__name__, str(message)[:23])
atexit.register(lambda: print("there still", len(os.listdir("left"))))
folder = tempfile.TemporaryDirectory()
file = tempfile.NamedTemporaryFile()
print(len(os.listdir("left")))
