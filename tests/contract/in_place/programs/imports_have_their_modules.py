"""Each module in sys.modules is the one that its parent package and a second import give."""

import importlib
import sys

import concurrent.futures
import email.message
import logging.handlers
import os.path
import xml.dom.minidom

for name, module in list(sys.modules.items()):
    parent, _, last = name.rpartition(".")
    if parent in sys.modules and getattr(sys.modules[parent], last, module) is not module:
        print("another", name)
    if name != "__main__" and importlib.import_module(name) is not module:
        print("differs", name)
print(sorted(name for name in globals() if not name.startswith("_")))
print(concurrent.futures, email.message, logging.handlers, os.path, xml.dom.minidom, sep="\n")
