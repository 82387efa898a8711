"""The script that forked workers run, and how its end is noted."""
