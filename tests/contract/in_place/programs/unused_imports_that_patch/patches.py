import builtins
import json
import sys

BEFORE = json.dumps({})
json.dumps = lambda value: "patched"
old_hook = sys.excepthook
sys.excepthook = lambda *error: print("patched hook")
builtins.from_patches = 1
