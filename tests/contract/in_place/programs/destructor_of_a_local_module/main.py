"""An object with __del__ that a function of a local module has made, for the module to hold."""

import pools

print(pools.get().name)
