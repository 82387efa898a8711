"""The sections of a job file that only ``clusterrun submit`` reads."""

SCHEDULERS = ("slurm", "lsf", "flux", "pbs", "kubernetes")
"""Schedulers that jobs are submitted to, in the order in which they are looked for."""

ALL_SCHEDULERS = "submit"
"""The section that holds for each of them, unless the scheduler's own says otherwise."""

SECTIONS = (ALL_SCHEDULERS, *SCHEDULERS)
