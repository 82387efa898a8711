"""Checks of this machine: what is wrong with it for a training job, and what to do."""
