"""__main__ under -m: a spec, a package, the file's full path."""

import sys

from main_module_of_m import __file__ as package_file

main = sys.modules["__main__"]
print(main.__dict__ is globals(), sorted(dir()))
print(__name__, __package__, __file__, __cached__, package_file)
print(__spec__.name, __spec__.origin, __spec__.parent, __spec__.has_location, __spec__.cached)
print(__loader__ is __spec__.loader, type(__loader__).__name__, __loader__.get_filename())
print("main_module_of_m.main" in sys.modules, "runpy" in sys.modules, repr(main))
print(sys.argv, sys.orig_argv[1:], sys.path[:2])
