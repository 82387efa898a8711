"""Read paths of files and folders."""

from pathlib import Path

from clusterrun.errors import UsageError
from clusterrun.sources.options.suggestions import did_you_mean_file
from clusterrun.sources.programs.file_kinds import FileKind, kind_of

ARCHIVES = (".tar.xz", ".tar.gz", ".tgz")
"""The suffixes of archives that can be written."""


def path(text: str) -> str:
    """Read the path of a file or folder, which need not exist."""
    if not text:
        raise UsageError("the path is empty", "give the path of a file or folder")
    if text.startswith("~"):
        # A folder named "~" would invite its owner to rm -r it.
        raise UsageError(f"{text!r} has a ~, which only a shell expands", "write the path in full")
    return text


def file_path(text: str) -> str:
    """Read the path of a file, which need not exist."""
    if kind_of(path(text)) is FileKind.FOLDER:
        raise UsageError(f"{text} is a folder", "give the path of a file")
    return text


def captured_machine(text: str) -> Path:
    """Read the path of an existing folder or file; ``machine.captures`` checks its content."""
    match kind_of(path(text)):
        case FileKind.FILE | FileKind.FOLDER:
            return Path(text)
        case FileKind.OTHER:
            complaint = f"{text} is neither a folder nor a file"
        case FileKind.NOTHING:
            complaint = f"{text} does not exist"
    hint = did_you_mean_file(text) or "give a captured machine, its folder or its archive"
    raise UsageError(complaint, hint)


def new_archive(text: str) -> Path:
    if not path(text).endswith(ARCHIVES) or kind_of(text) is FileKind.FOLDER:
        raise UsageError(
            f"{text!r} is not the name of an archive", "give a name that ends in .tar.xz or .tar.gz"
        )
    return Path(text)
