"""No object is kept from the collector."""

import gc

print(gc.get_freeze_count())
