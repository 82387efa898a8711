"""Where a job is described: flags, variables and files become a JobSpec, every value with its origin."""
