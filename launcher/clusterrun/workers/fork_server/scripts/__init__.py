"""The user's script in a forked worker: read, run, and how it ended."""
