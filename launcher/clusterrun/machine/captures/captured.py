"""Opening a captured machine: a folder or an archive."""

from collections.abc import Mapping
from pathlib import Path

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.machine.captures.notes import FILE, VARIABLES, Notes, read_notes
from clusterrun.machine.files import Files, Folder
from clusterrun.machine.inspect import Source
from clusterrun.machine.tree import Tree

_CAPTURE_ONE = "to capture a machine, type on it:\n  clusterrun topo --capture machine.tar.xz"


def open_captured(root: Fact[Path], environ: Mapping[str, str]) -> Source:
    """Return the machine captured in the folder or archive ``root``, as the captured process saw it.

    Args:
        root: where it is.
        environ: our environment; the captured one has the variables for GPUs.

    Raises:
        UsageError: it is no captured machine.

    """
    files = _files(root)
    tree = Tree(files)
    if not tree.exists("sys") and not tree.exists("proc"):
        raise UsageError(
            f"{root.origin}: {root.value} is no captured machine: it has neither sys nor proc",
            _CAPTURE_ONE,
        )
    captured, variables = None, dict(environ)
    # Another tool leaves no notes.
    if notes := _notes(tree, root):
        captured = CpuSet.parse(notes.allowed_cpus)
        others = {name: value for name, value in environ.items() if name not in VARIABLES}
        variables = others | notes.variables
    return Source(files, captured, variables)


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
