"""Opening a captured machine: a folder or an archive."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.machine.captures.folder import Folder
from clusterrun.machine.captures.notes import FILE, VARIABLES, Notes, read_notes
from clusterrun.machine.processors import online_cpus
from clusterrun.machine.tree import Files, Tree

_CAPTURE_ONE = "to capture a machine, type on it:\n  clusterrun topo --capture machine.tar.xz"


class Captured(NamedTuple):
    """A captured machine, and what its process could use."""

    files: Files
    notes: Notes | None
    """None: another tool captured it."""
    allowed: CpuSet | None
    """The CPUs that the process may use; None: as the captured /proc has it, else all."""

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
        allowed: CPUs to use instead of those of the captured process.

    Raises:
        UsageError: it is no captured machine, or does not have these CPUs.

    """
    files = _files(root)
    tree = Tree(files)
    if not tree.exists("sys") and not tree.exists("proc"):
        raise UsageError(
            f"{root.origin}: {root.value} is no captured machine: it has neither sys nor proc",
            _CAPTURE_ONE,
        )
    notes = _notes(tree, root)
    captured = CpuSet.parse(notes.allowed_cpus) if notes else None
    if allowed.value is None:
        return Captured(files, notes, captured)
    # lxcfs may number a container's CPUs from 0: those of the captured process exist, too.
    known = CpuSet(online_cpus(tree) | (captured or CpuSet()))
    return Captured(files, notes, _within(allowed.value, allowed.origin, known))


def _files(root: Fact[Path]) -> Files:
    if root.value.is_dir():
        return Folder(root.value)
    # Only archives need the modules that unpack them.
    from clusterrun.machine.captures.packing import read_archive

    try:
        return read_archive(root.value)
    except OSError as error:
        raise UsageError(f"{root.origin}: {root.value} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(
            f"{root.origin}: {root.value} is not an archive of a machine: {error}",
            f"give a .tar.xz, .tar.gz, .tar.bz2 or .tar, or a folder; {_CAPTURE_ONE}",
        ) from None


def _notes(tree: Tree, root: Fact[Path]) -> Notes | None:
    try:
        return read_notes(tree)
    except ValueError as error:
        raise UsageError(
            f"{root.origin}: {FILE} in {root.value} can't be understood: {error}", _CAPTURE_ONE
        ) from None


def _within(allowed: CpuSet, origin: str, known: CpuSet) -> CpuSet:
    unknown = CpuSet(allowed - known)
    if known and unknown:
        raise UsageError(
            f"{origin}: that machine has no CPUs {unknown}", f"name some of its CPUs: {known}"
        )
    return allowed
