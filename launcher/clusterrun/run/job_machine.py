"""A job and the machine that it runs on: this one, or a captured one for a preview."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.facts import Fact
from clusterrun.domain.machine import Machine
from clusterrun.job.job import Job
from clusterrun.job.resolve import Resolved
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import Tree
from clusterrun.planning.job_machine import local_size, machine_for
from clusterrun.planning.variables import environment_before

ROOT = Path("/")


class Source(NamedTuple):
    """What a machine is read from: this machine, or a captured one as its own process saw it."""

    tree: Tree
    allowed: CpuSet | None
    """The CPUs that the process may use; None: as the tree has it, else all."""
    variables: Mapping[str, str]
    """The process's environment."""


class LocalJob(Struct, frozen=True):
    """The job as far as this node is concerned, before the nodes have joined."""

    resolved: Resolved
    variables: Mapping[str, str]
    """The environment of this process."""
    machine: Machine
    workers: int
    """The number of workers on this node."""
    fault: str = ""
    """What ``--check-nodes`` has found; "" if nothing, or not asked for."""

    @property
    def job(self) -> Job:
        return self.resolved.job

    @property
    def environment(self) -> dict[str, str]:
        """That of the workers as the user made it, without what clusterrun sets."""
        return environment_before(self.job, self.variables, self.resolved.unset)


def local_job(resolved: Resolved, environ: Mapping[str, str]) -> LocalJob:
    """Inspect this machine, and return the job as far as this node is concerned.

    Raises:
        LauncherError: the job cannot run on this machine.

    """
    machine = job_machine(resolved, source_of(resolved, environ))
    workers = local_size(resolved.job, machine)
    if resolved.job.has_wrappers:
        # Few jobs are debugged.
        from clusterrun.run.wrapped_ranks import check_wrappers

        environment = environment_before(resolved.job, environ, resolved.unset)
        check_wrappers(resolved.job, workers, environment)
    return LocalJob(resolved, environ, machine, workers, _fault_here(resolved.job, environ))


def _fault_here(job: Job, environ: Mapping[str, str]) -> str:
    """Return what ``--check-nodes`` finds on this machine; "" if nothing, or not asked for.

    Raises:
        MachineError: it finds something, and the job has no other node.

    """
    if not job.losing.check_nodes:
        return ""
    # Few jobs look.
    from clusterrun.run.node_check import checked

    return checked(job, environ)


def source_of(resolved: Resolved, environ: Mapping[str, str]) -> Source:
    """Return what to read the job's machine from.

    Raises:
        UsageError: --machine-root is given, and is no captured machine.

    """
    root = resolved.machine_root
    if root.value is None:
        return Source(Tree(ROOT), CpuSet(os.sched_getaffinity(0)), environ)
    # Only a preview reads a captured machine.
    from clusterrun.machine.capture import open_captured

    return Source(*open_captured(Fact(root.value, root.origin), environ))


def inspect_source(resolved: Resolved, source: Source) -> Machine:
    """Return the whole machine, whatever the job may use of it."""
    environment = environment_before(resolved.job, source.variables, resolved.unset)
    return inspect(source.tree, environment, source.allowed, os.uname().nodename)


def job_machine(resolved: Resolved, source: Source) -> Machine:
    """Return the machine as the job may use it: all that planning and reports look at.

    Raises:
        UsageError: the job's options name a GPU, a node or a CPU that is not on the machine.

    """
    return machine_for(resolved.job, inspect_source(resolved, source))
