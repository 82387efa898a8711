"""Colours of workers that print to pipes, but whose output a terminal shows."""

from collections.abc import Mapping

from clusterrun.domain.job import JobSpec

FORCE_COLOUR = "FORCE_COLOR"
"""Read by rich, loguru, termcolor, Python itself from 3.13 on, and others (force-color.org)."""


def colour_variables(job: JobSpec, workers: int, before: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variable for ``workers`` whose lines are mixed on one terminal."""
    if not job.coloured.value or has_output_to_itself(job, workers) or before.get("NO_COLOR"):
        return {}
    return {FORCE_COLOUR: "1"}


def has_output_to_itself(job: JobSpec, workers: int) -> bool:
    """Return whether one worker alone prints to our output: a scheduler merges that of all tasks."""
    return workers == 1 and (job.agents == 1 or job.cluster.value == "none")
