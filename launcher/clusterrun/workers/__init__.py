"""Processes: the fork server and its client, the relay, containment."""
