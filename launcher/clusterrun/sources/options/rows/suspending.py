"""Options: when a job is suspended."""

from clusterrun.sources.options.old_rows import OLD

SUSPEND_SIGNAL = OLD["suspend_signal"]
SUSPEND_GRACE = OLD["suspend_grace"]
SUSPEND_EXIT_CODE = OLD["suspend_exit_code"]
SUSPEND_BEFORE = OLD["suspend_before"]
SUSPEND_HOOK = OLD["suspend_hook"]
REQUEUE = OLD["requeue"]
