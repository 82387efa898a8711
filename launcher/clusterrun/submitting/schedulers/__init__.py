"""One file for each scheduler: its script as a pure function of the job, and its commands."""
