"""Schedulers and platforms; ``detection.py`` has the table of them and says how to add one."""
