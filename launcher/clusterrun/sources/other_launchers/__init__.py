"""torchrun's options and defaults, in terms of clusterrun's."""
