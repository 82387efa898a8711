"""A folder without __init__.py is a package whose path may grow."""

import parts.first

print(parts.first.VALUE, list(parts.__path__), parts.__file__, parts.__spec__.origin)
