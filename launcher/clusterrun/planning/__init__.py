"""Pure functions that plan a node: its workers' ranks, GPUs, CPUs and environment variables."""
