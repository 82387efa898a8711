"""Who runs where: ranks, binding and variables, by pure functions."""
