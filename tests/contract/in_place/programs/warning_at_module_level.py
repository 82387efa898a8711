"""A warning names the line that is to blame."""

import warnings

warnings.warn("level one")
warnings.warn("deprecated in main is shown", DeprecationWarning)


def old():
    warnings.warn("old", DeprecationWarning, stacklevel=2)


old()
old()
print(sorted(name for name in globals() if "warningregistry" in name))
