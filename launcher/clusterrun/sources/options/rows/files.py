"""Options: what is written to files."""

from clusterrun.sources.options.old_rows import OLD

LOG_DIR = OLD["log_dir"]
REDIRECTS = OLD["redirects"]
TEE = OLD["tee"]
EVENTS = OLD["events"]
