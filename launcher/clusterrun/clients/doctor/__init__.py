"""Checks of this machine and, as a job with one worker on each node, of the nodes together."""
