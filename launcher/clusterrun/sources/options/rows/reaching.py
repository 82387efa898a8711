"""Options: how other hosts are reached."""

from clusterrun.sources.options.old_rows import OLD

LAUNCHER = OLD["launcher"]
SSH_OPTIONS = OLD["ssh_options"]
