"""The requested job, from options, environment variables, a job file and the cluster."""
