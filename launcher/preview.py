"""What a launch would do, here or on a machine that was captured; starts nothing."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from launcher.domain.cpuset import CpuSet
from launcher.domain.facts import Fact
from launcher.domain.machine import Machine
from launcher.domain.plan import NodePlan
from launcher.machine.files import Files
from launcher.machine.folder import Folder
from launcher.machine.inspect import inspect
from launcher.machine.tree import Tree
from launcher.planning.devices import with_devices
from launcher.planning.node import plan_node
from launcher.planning.numa_map import with_map
from launcher.planning.ranks import local_size
from launcher.planning.variables import environment_before
from launcher.rendezvous.assumed import assumed_world
from launcher.sources.resolve import Resolved

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
    from launcher.machine.archive import Entry  # noqa: PLC0415 - see above
    from launcher.machine.notes import FILE, take_notes, write_notes  # noqa: PLC0415 - see above
    from launcher.machine.packing import pack  # noqa: PLC0415 - see above
    from launcher.machine.recorder import Recorder  # noqa: PLC0415 - see above

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
    from launcher.machine.captured import open_captured  # noqa: PLC0415 - see above

    captured = open_captured(Fact(root.value, root.origin), resolved.allowed_cpus)
    return Place(captured.files, captured.allowed, captured.environment(environ))


def _inspect(resolved: Resolved, place: Place) -> Machine:
    environment = environment_before(resolved.job, place.variables, resolved.unset)
    return inspect(place.files, environment, place.allowed, os.uname().nodename)


def _affinity() -> CpuSet:
    return CpuSet(os.sched_getaffinity(0))
