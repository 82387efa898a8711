"""Options: when a node is lost."""

from clusterrun.sources.options.old_rows import OLD

SPARES = OLD["spares"]
MAX_NODE_LOSSES = OLD["max_node_losses"]
REJOIN_TIMEOUT = OLD["rejoin_timeout"]
EXCLUDE_AFTER = OLD["exclude_after"]
CHECK_NODES = OLD["check_nodes"]
ELASTIC_MULTIPLE = OLD["elastic_multiple"]
ELASTIC_JOIN = OLD["elastic_join"]
