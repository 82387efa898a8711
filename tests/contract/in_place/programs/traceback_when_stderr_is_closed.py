"""An exception where sys.stderr is None or closed."""

import sys

sys.stderr = None
raise ValueError("nobody hears it")
