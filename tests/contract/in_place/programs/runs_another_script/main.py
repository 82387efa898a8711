"""runpy and exec run another file as __main__, and put ours back."""

import runpy
import sys

mine = sys.modules["__main__"]
print(runpy.run_path("runs_another_script/other.py", run_name="__main__")["VALUE"])
print(sys.modules["__main__"] is mine, sys.argv, "VALUE" in globals())
print(runpy.run_module("json.tool", run_name="not_main")["__name__"])
exec(compile("print(__name__, __file__)", "text", "exec"))
