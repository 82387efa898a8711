"""What this node has: CPUs, NUMA nodes and GPUs, read below a root that can be a captured machine."""
