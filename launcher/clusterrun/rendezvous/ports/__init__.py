"""Ports: the one where nodes join, and the one held for the workers."""
