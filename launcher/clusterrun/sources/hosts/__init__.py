"""Lists of hosts, and which of them this host is."""
