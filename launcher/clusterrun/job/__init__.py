"""What is asked for: a job, described by options, variables, a job file and a cluster."""
