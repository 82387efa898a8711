"""Without sys.excepthook the interpreter prints what it can."""

import sys

del sys.excepthook
raise ValueError("without a hook")
