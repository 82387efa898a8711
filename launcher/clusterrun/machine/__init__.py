"""Reads the CPUs, NUMA nodes and GPUs of this node, or of a captured machine."""
