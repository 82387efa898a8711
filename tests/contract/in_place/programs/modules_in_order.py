"""sys.modules has its names in the order in which they were first imported."""

import sys
import textwrap
import bisect
import shlex

names = list(sys.modules)
wanted = ["builtins", "sys", "os", "__main__", "textwrap", "bisect", "shlex"]
print(sorted(wanted, key=names.index))
print(all(sys.modules[name] is not None for name in names))
print([len(module) > 0 for module in (textwrap.__name__, bisect.__name__, shlex.__name__)])
