"""Options: clusterrun itself."""

from clusterrun.sources.options.old_rows import OLD

CONFIG = OLD["config"]
DRY_RUN = OLD["dry_run"]
JSON = OLD["json"]
MACHINE_ROOT = OLD["machine_root"]
