"""Options: what is printed."""

from clusterrun.sources.options.old_rows import OLD

LOCAL_RANKS_FILTER = OLD["local_ranks_filter"]
RANKS = OLD["ranks"]
LOG_LINE_PREFIX_TEMPLATE = OLD["log_line_prefix_template"]
DUPLICATE_STDOUT_FILTERS = OLD["duplicate_stdout_filters"]
DUPLICATE_STDERR_FILTERS = OLD["duplicate_stderr_filters"]
VERBOSE = OLD["verbose"]
