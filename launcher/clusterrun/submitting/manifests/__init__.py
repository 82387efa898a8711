"""Kubernetes' objects of a job: a pure function for each kind, from the job to plain values."""
