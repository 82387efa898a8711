"""Runs one job on this node: ``launch.py`` tells the order, ``agent.py`` performs what is decided."""
