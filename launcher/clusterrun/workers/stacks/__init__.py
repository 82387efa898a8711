"""Python stacks of running workers, and whether the workers are active."""
