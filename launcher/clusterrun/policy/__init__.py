"""What the launcher decides, without input or output: the whole job's side, and each node's."""
