"""Jobs that are handed to a scheduler: what it runs, its commands, and the way to a job's end."""
