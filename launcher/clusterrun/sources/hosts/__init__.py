"""Lists of hosts, and the rank of this host among them."""
