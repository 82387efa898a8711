"""Options: which CPUs and GPUs a worker gets."""

from clusterrun.sources.options.old_rows import OLD

NUMA_BINDING = OLD["numa_binding"]
NUMA_MEMORY = OLD["numa_memory"]
NUMA_MAP = OLD["numa_map"]
NUMA_STRICT = OLD["numa_strict"]
GPUS_PER_WORKER = OLD["gpus_per_worker"]
VIRTUAL_LOCAL_RANK = OLD["virtual_local_rank"]
