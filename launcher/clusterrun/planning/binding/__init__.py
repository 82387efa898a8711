"""Which GPUs and CPUs each worker of a node gets (docs/binding.md), by pure functions."""
