# __main__ is a module object of its own, with the attributes that Python gives it; this is no docstring.

before = sorted(globals())

import builtins
import sys
import types

main = sys.modules["__main__"]
print(before)
print(type(main) is types.ModuleType, main.__dict__ is globals(), repr(main))
print(sorted(dir()))
print(__name__, __file__, __spec__, __package__, repr(__doc__), __cached__, __annotations__)
print(type(__loader__).__name__, __loader__.name, __loader__.path)
print(__builtins__ is builtins, main.__builtins__ is builtins)
print([name for name, module in sys.modules.items() if module is main])
