"""What is asked of a scheduler: options of ``clusterrun submit``, sections of the job file."""
