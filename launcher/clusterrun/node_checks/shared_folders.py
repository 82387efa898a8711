"""Whether a folder is the same on all nodes: node 0 writes a file there, the others look for it."""

import secrets
from contextlib import suppress
from functools import partial
from pathlib import Path

from clusterrun.node_checks.meeting import Meeting
from clusterrun.processes import TimeLimited

SECONDS_TO_LOOK = 10.0


def look_for(meeting: Meeting, folder: Path) -> list[bool]:
    """Return for each node whether it sees node 0's file; [] on other nodes.

    A folder that node 0 can't write to is one that no node sees.

    Raises:
        Silent: a node does not answer.

    """
    text = secrets.token_hex(8)
    file = folder / f".clusterrun-doctor-{text}"
    # A file server may hang, on node 0, too.
    files = TimeLimited(SECONDS_TO_LOOK / 2)
    try:
        if meeting.rank == 0:
            files.run(partial(_write, file, text))
        seen = meeting.announce(str(file), str)
        holds = files.run(partial(_holds, Path(seen))) or False
        return meeting.collect(holds, bool, SECONDS_TO_LOOK)
    finally:
        if meeting.rank == 0:
            files.run(partial(_remove, file))


def _write(file: Path, text: str) -> None:
    with suppress(OSError):
        file.write_text(text)


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink()


def _holds(file: Path) -> bool:
    try:
        return file.read_text() == file.name.rpartition("-")[2]
    except OSError:
        return False
