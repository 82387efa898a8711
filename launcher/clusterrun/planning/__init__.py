"""The plan of a node: ranks, binding and variables, by pure functions."""
