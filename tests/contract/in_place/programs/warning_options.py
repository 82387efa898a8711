"""PYTHONWARNINGS is heard."""

import sys
import warnings

print(sys.warnoptions, warnings.filters)
warnings.warn("becomes an error")
