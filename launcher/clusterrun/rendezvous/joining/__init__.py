"""From the address of node 0 to a place in the world."""
