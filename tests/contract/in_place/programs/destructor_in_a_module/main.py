"""An object that a local module holds ends with the module."""

import holds

print(holds.THING.name)
