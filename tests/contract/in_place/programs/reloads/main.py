"""importlib.reload of a local module, and of one of the standard library's."""

import importlib
import textwrap

import counted

counted.COUNT = 5
again = importlib.reload(counted)
print(again is counted, counted.COUNT, importlib.reload(textwrap) is textwrap)
