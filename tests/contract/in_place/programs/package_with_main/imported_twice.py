"""A module that -m runs and that its own package imports too: two modules, one warning."""

import sys

from . import imports_it_back

print(__name__, imports_it_back.other_name(), sorted(n for n in sys.modules if "package_with" in n))
