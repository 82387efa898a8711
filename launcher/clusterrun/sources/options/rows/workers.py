"""Options: how many workers, and where."""

from clusterrun.sources.options.old_rows import OLD

NNODES = OLD["nnodes"]
NODE_RANK = OLD["node_rank"]
NPROC_PER_NODE = OLD["nproc_per_node"]
HOSTS = OLD["hosts"]
HOSTFILE = OLD["hostfile"]
CLUSTER = OLD["cluster"]
USE_PADDLECLOUD = OLD["use_paddlecloud"]
DEVICES = OLD["devices"]
