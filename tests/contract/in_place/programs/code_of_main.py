"""The code object that runs: its name, its file, its constants."""

import sys

code = sys._getframe().f_code
print(code.co_name, code.co_qualname, code.co_filename, code.co_firstlineno, bin(code.co_flags))
print(code.co_consts[0], len(code.co_names), code.co_names[:3])
