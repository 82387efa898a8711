"""Options: when a worker fails."""

from clusterrun.sources.options.old_rows import OLD

MAX_RESTARTS = OLD["max_restarts"]
NO_RESTART_EXIT_CODES = OLD["no_restart_exit_codes"]
NO_FAIL_FAST = OLD["no_fail_fast"]
HEARTBEAT_TIMEOUT = OLD["heartbeat_timeout"]
HANG_TIMEOUT = OLD["hang_timeout"]
ON_HANG = OLD["on_hang"]
SHUTDOWN_TIMEOUT = OLD["shutdown_timeout"]
CONTAIN = OLD["contain"]
