"""Which GPUs and CPUs each worker of a node gets (BINDING.md), by pure functions."""
