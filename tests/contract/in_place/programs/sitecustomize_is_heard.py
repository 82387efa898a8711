"""The user's own sitecustomize has run before the script."""

import sys

print(sys.from_sitecustomize, "sitecustomize" in sys.modules)
print(sys.modules["sitecustomize"].__file__)
