"""sys.argv, sys.orig_argv and sys.path are those of python -u."""

import sys

print(sys.argv)
print(sys.orig_argv)
print(sys.path)
print(sys.flags)
print(sys.executable, sys._base_executable, sys.prefix, sys.base_prefix, sys.exec_prefix)
print(sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.pycache_prefix)
