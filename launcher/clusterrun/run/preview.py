"""What a launch would do, here or on a machine that was captured; starts nothing."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.facts import Fact
from clusterrun.domain.machine import Machine
from clusterrun.domain.plan import NodePlan
from clusterrun.machine.captures.folder import Folder
from clusterrun.machine.captures.machine_files import Files
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import Tree
from clusterrun.planning.binding.numa_map import with_map
from clusterrun.planning.devices import with_devices
from clusterrun.planning.node_plan import plan_node
from clusterrun.planning.variables.worker_variables import environment_before
from clusterrun.planning.worker_count import local_size
from clusterrun.rendezvous.assumed import assumed_world
from clusterrun.sources.resolve import Resolved

ROOT = Path("/")


class Preview(NamedTuple):
    """A machine, and the plan for it."""

    machine: Machine
    plan: NodePlan


class Place(NamedTuple):
    """Where a job would run: this machine, or a captured one as its own process saw it."""

    files: Files
    allowed: CpuSet | None
    """The CPUs that the process may use; None: what is captured tells."""
    variables: Mapping[str, str]
    """The process's environment."""


def preview(resolved: Resolved, environ: Mapping[str, str]) -> Preview:
    """Return what ``launch`` would start, and where; chooses no port.

    Raises:
        UsageError: the job can't be run there as described, or no machine was captured there.

    """
    job = resolved.job
    place = _place(resolved, environ)
    machine = with_devices(with_map(_inspect(resolved, place), job.numa_map), job.devices)
    plan = plan_node(
        job,
        machine,
        assumed_world(job, local_size(job, machine)),
        unset=resolved.unset,
        error_files=None,
        environ=place.variables,
    )
    return Preview(machine, plan)


def capture(resolved: Resolved, environ: Mapping[str, str]) -> bytes:
    """Return the tar of all that is read of the machine, whatever a plan would make of it.

    Raises:
        UsageError: no machine was captured where the job says.

    """
    # Only this packs anything.
    from clusterrun.machine.captures.archive import Entry
    from clusterrun.machine.captures.notes import FILE, take_notes, write_notes
    from clusterrun.machine.captures.packing import pack
    from clusterrun.machine.captures.recorder import Recorder

    place = _place(resolved, environ)
    recorder = Recorder(place.files)
    machine = _inspect(resolved, place._replace(files=recorder))
    environment = environment_before(resolved.job, place.variables, resolved.unset)
    notes = take_notes(Tree(place.files), environment, machine.allowed)
    entries, folders = recorder.recorded()
    return pack("machine", entries | {FILE: Entry(write_notes(notes))}, folders)


def this_machine(environment: Mapping[str, str]) -> Machine:
    """Return the machine that this process runs on; ``environment`` is the job's."""
    return inspect(ROOT, environment, _affinity(), os.uname().nodename)


def _place(resolved: Resolved, environ: Mapping[str, str]) -> Place:
    root = resolved.machine_root
    if root.value is None:
        return Place(Folder(ROOT), _affinity(), environ)
    # Most jobs run on the machine that there is.
    from clusterrun.machine.captures.captured import open_captured

    captured = open_captured(Fact(root.value, root.origin), resolved.allowed_cpus)
    return Place(captured.files, captured.allowed, captured.environment(environ))


def _inspect(resolved: Resolved, place: Place) -> Machine:
    environment = environment_before(resolved.job, place.variables, resolved.unset)
    return inspect(place.files, environment, place.allowed, os.uname().nodename)


def _affinity() -> CpuSet:
    return CpuSet(os.sched_getaffinity(0))
