"""A machine that was captured elsewhere: in a folder or in an archive."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.machine.captures.folder import Folder
from clusterrun.machine.captures.machine_files import Files
from clusterrun.machine.captures.notes import FILE, VARIABLES, Notes, read_notes
from clusterrun.machine.processors import online_cpus
from clusterrun.machine.tree import Tree

_TAKE_ONE = "take one on that machine by:\n  clusterrun topo --capture machine.tar.xz"


class Captured(NamedTuple):
    """What was captured, and for whom it is looked at."""

    files: Files
    notes: Notes | None
    """None: it is no capture of clusterrun's own."""
    allowed: CpuSet | None
    """The CPUs that a process may use there; None: what its /proc says, else all."""

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return ``environ`` with the variables that the captured process had for its GPUs."""
        if self.notes is None:
            return dict(environ)
        others = {name: value for name, value in environ.items() if name not in VARIABLES}
        return others | self.notes.variables


def open_captured(root: Fact[Path], allowed: Fact[CpuSet | None]) -> Captured:
    """Return the machine captured in the folder or archive ``root``.

    Args:
        root: where it is.
        allowed: CPUs that a process may use there, instead of those that the captured one might.

    Raises:
        UsageError: there is no machine in it, or it doesn't have these CPUs.

    """
    files = _files(root)
    tree = Tree(files)
    if not tree.exists("sys") and not tree.exists("proc"):
        raise UsageError(
            f"{root.origin}: no machine is captured in {root.value}: it has neither sys nor proc",
            _TAKE_ONE,
        )
    notes = _notes(tree, root)
    captured = CpuSet.parse(notes.allowed_cpus) if notes else None
    if allowed.value is None:
        return Captured(files, notes, captured)
    # lxcfs may number a container's CPUs from 0: those of the captured process are there, too.
    there = CpuSet(online_cpus(tree) | (captured or CpuSet()))
    return Captured(files, notes, _within(allowed.value, allowed.origin, there))


def _files(root: Fact[Path]) -> Files:
    if root.value.is_dir():
        return Folder(root.value)
    # Unpacking takes modules that nothing else needs.
    from clusterrun.machine.captures.packing import read_archive

    try:
        return read_archive(root.value)
    except OSError as error:
        raise UsageError(f"{root.origin}: {root.value} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(
            f"{root.origin}: {root.value} is no archive of a machine: {error}",
            f"give a .tar.xz, .tar.gz, .tar.bz2 or .tar, or a folder; {_TAKE_ONE}",
        ) from None


def _notes(tree: Tree, root: Fact[Path]) -> Notes | None:
    try:
        return read_notes(tree)
    except ValueError as error:
        raise UsageError(
            f"{root.origin}: {FILE} in {root.value} can't be understood: {error}", _TAKE_ONE
        ) from None


def _within(allowed: CpuSet, origin: str, there: CpuSet) -> CpuSet:
    strange = CpuSet(allowed - there)
    if there and strange:
        raise UsageError(
            f"{origin}: that machine has no CPUs {strange}", f"give some of its own: {there}"
        )
    return allowed
