"""stacklevel 2 at module level points nowhere, at 1 to this line."""

import warnings

warnings.warn("level one")
warnings.warn("level two", stacklevel=2)
warnings.warn("level three", DeprecationWarning, stacklevel=3)
warnings.warn("deprecated in main is shown", DeprecationWarning)


def old():
    warnings.warn("old", DeprecationWarning, stacklevel=2)


old()
old()
print(sorted(name for name in globals() if "warningregistry" in name))
