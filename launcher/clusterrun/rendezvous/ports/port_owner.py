"""Which program listens on a port: /proc/net/tcp tells its socket, /proc/PID/fd whose that is."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_LISTENING = "0A"
"""TCP_LISTEN in the kernel's include/net/tcp_states.h."""


class _Listener(NamedTuple):
    inode: str
    user_id: str


def owner_of_port(port: int, root: Path) -> str:
    """Return "python (pid 12)", "a program of user 1000", or "another program" for want of more."""
    listener = next(_listeners(port, root), None)
    if listener is None:
        return "another program"
    pid = _holder(f"socket:[{listener.inode}]", root)
    return program(pid, root) if pid else f"a program of user {listener.user_id}"


def program(pid: int, root: Path) -> str:
    """Return "python (pid 12)"."""
    name = ""
    with suppress(OSError):
        name = (root / f"proc/{pid}/comm").read_text(errors="replace").strip()
    return f"{name or 'a program'} (pid {pid})"


def _listeners(port: int, root: Path) -> Iterator[_Listener]:
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        with suppress(OSError):
            yield from _listeners_in((root / table).read_text(), port)


def _listeners_in(table: str, port: int) -> Iterator[_Listener]:
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10:
            continue
        _, local, _, state, _, _, _, user_id, _, inode = fields[:10]
        if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
            yield _Listener(inode, user_id)


def _holder(link: str, root: Path) -> int:
    """Return the process that has such a descriptor; 0 if none of ours to see has."""
    for process in (root / "proc").iterdir():
        if process.name.isdigit() and link in _links(process / "fd"):
            return int(process.name)
    return 0


def _links(descriptors: Path) -> Iterator[str]:
    with suppress(OSError):
        for descriptor in descriptors.iterdir():
            with suppress(OSError):
                yield str(descriptor.readlink())
