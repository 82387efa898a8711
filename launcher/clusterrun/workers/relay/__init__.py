"""The relay: it owns the workers' pipes, the terminal and the log files."""
