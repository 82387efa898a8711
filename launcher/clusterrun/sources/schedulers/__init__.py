"""The scheduler's job that this job runs in, apart from the place of this process in it."""
