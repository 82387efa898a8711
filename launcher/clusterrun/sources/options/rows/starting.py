"""Options: how workers start."""

from clusterrun.sources.options.old_rows import OLD

START_METHOD = OLD["start_method"]
PRELOAD = OLD["preload"]
KEEP_WARM = OLD["keep_warm"]
EXEC = OLD["exec"]
