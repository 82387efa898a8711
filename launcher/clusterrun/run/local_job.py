"""The job as far as this node is concerned, before the nodes have joined."""

from collections.abc import Mapping
from typing import NamedTuple

from clusterrun.domain.job import JobSpec
from clusterrun.domain.machine import Machine
from clusterrun.sources.resolve import Resolved


class LocalJob(NamedTuple):
    """What the command line, the environment and the machine say."""

    resolved: Resolved
    variables: Mapping[str, str]
    """The environment of this process."""
    machine: Machine
    workers: int
    """The number of workers on this node."""

    @property
    def job(self) -> JobSpec:
        return self.resolved.job
