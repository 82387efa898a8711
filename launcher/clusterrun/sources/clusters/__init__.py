"""Schedulers and platforms, one file each; ``cluster.py`` describes how to add one."""
