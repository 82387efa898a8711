"""Options: how nodes find each other."""

from clusterrun.sources.options.old_rows import OLD

MASTER_ADDR = OLD["master_addr"]
MASTER_PORT = OLD["master_port"]
LOCAL_ADDR = OLD["local_addr"]
BASE_PORT = OLD["base_port"]
RDZV_ENDPOINT = OLD["rdzv_endpoint"]
