"""The folder for files that workers write for us: TORCHELASTIC_ERROR_FILE."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def make_scratch(environ: Mapping[str, str], name: str) -> Path | None:
    """Make an empty folder of our own below TMPDIR; None where that can't be done.

    Workers do without error files then: their standard error says the same.
    """
    folder = Path(environ.get("TMPDIR") or "/tmp") / f"clusterrun-{name}-{os.getpid()}"  # noqa: S108 - made for us alone, below
    try:
        folder.mkdir(mode=0o700)
    except OSError:
        return None
    return folder


def remove_scratch(directory: Path) -> None:
    """Remove ``directory`` and all in it, as far as that is possible.

    The relay's last deed, as it outlives the agent; the agent's, where the relay was lost.
    """
    for path, directories, files in os.walk(directory, topdown=False):
        for name in (*files, *directories):
            _remove_entry(Path(path, name))
    _remove_entry(directory)


def _remove_entry(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
