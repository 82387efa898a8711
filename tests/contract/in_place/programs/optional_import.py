"""A leading import in try, as of a package that may be missing."""

import sys

try:
    import no_such_module_anywhere
except ImportError as error:
    no_such_module_anywhere = None
    print("without", error.name, error)

print(no_such_module_anywhere, "no_such_module_anywhere" in sys.modules)
