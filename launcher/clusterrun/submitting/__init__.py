"""A job as a scheduler's script or manifest; the scheduler's commands."""
