"""Variables of the worker as default arguments and class attributes of a local module."""

import defaults

print(defaults.rank(), defaults.Config.local_rank, defaults.Config().world_size, defaults.HAS)
