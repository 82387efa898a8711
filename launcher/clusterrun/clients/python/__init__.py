"""Jobs that are started from Python: a function runs on every rank, and the caller gets the results."""
