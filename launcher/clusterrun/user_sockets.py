"""Sockets of one user: in a folder closed to others, between processes of that user only."""

import os
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

SOCKET_FOLDER_HINT = (
    "set XDG_RUNTIME_DIR, for the job and for clusterrun ps and stop, to a folder that is"
    " yours alone"
)
"""What makes a place for sockets where there is none."""


def socket_folder_candidates(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders that may have sockets of this user's; new ones go to the first private one.

    A job and a command about it differ in TMPDIR and XDG_RUNTIME_DIR, as under Slurm, where a job
    has a TMPDIR of its own and no login: so commands look at all places. An XDG_RUNTIME_DIR that is
    not a login's was chosen, and there are no others.
    """
    name = f"clusterrun-{os.getuid()}"
    parents = ("/tmp", "/var/tmp", environ.get("TMPDIR") or "/tmp")  # noqa: S108 - only if private
    common = [Path(parent) / name for parent in parents]
    login = Path(f"/run/user/{os.getuid()}/clusterrun")
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    # Some containers set it, and do not have it; su leaves it as it was.
    first = [Path(runtime, "clusterrun")] if runtime and os.access(runtime, os.X_OK) else []
    if first and first != [login] and make_private_folder(first[0]):
        return tuple(first)
    return tuple(dict.fromkeys((*first, *common, login)))


def socket_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder for new sockets, made if it is missing; None: there is no private place.

    No other user may write there: a program that listens at a socket there would get the job.
    """
    return next(filter(make_private_folder, socket_folder_candidates(environ)), None)


def socket_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the places that exist and are private."""
    places = socket_folder_candidates(environ)
    return tuple(
        place for place in places if os.access(place, os.X_OK) and make_private_folder(place)
    )


def unusable_socket_folders(environ: Mapping[str, str]) -> str:
    """Return a sentence on the places that are taken, and not by this user alone; "" if none is."""
    strange = list(_strange(socket_folder_candidates(environ)))
    return f"{'; '.join(strange)}: not used for the sockets of jobs" if strange else ""


def _strange(places: Iterable[Path]) -> Iterator[str]:
    for place in places:
        with suppress(OSError):
            found = place.lstat()
            if found.st_uid != os.getuid():
                yield f"{place} belongs to user {found.st_uid}, not to you"
            elif not make_private_folder(place):
                yield f"{place} is not a folder that is closed to others (chmod 700)"


def make_private_folder(folder: Path) -> bool:
    """Make a folder if it is missing; return whether it is this user's, and closed to others."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_ours and not found.st_mode & 0o077


def listen_at(path: Path) -> socket.socket:
    """Return a socket that listens at ``path``, which must not exist.

    Raises:
        OSError: it exists, or can't be made.

    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _call_with_address(listener.bind, path)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def remove_socket(path: Path) -> None:
    """Remove a socket, and its folder if it was the last one there."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


def connect_to(path: Path, seconds: float) -> socket.socket:
    """Return a connection to this user's process that listens at ``path``.

    ``seconds``: the time limit of each call on the connection.

    Raises:
        OSError: no process listens there (ConnectionRefusedError: the one that did was killed), or
            it is another user's (PermissionError).

    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        _call_with_address(connection.connect, path)
        if not is_peer_same_user(connection):
            raise PermissionError(f"{path}: another user's process listens there")
    except OSError:
        connection.close()
        raise
    return connection


def is_peer_same_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end is this user's (unix(7), SO_PEERCRED)."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _pid, user, _group = struct.unpack("3i", credentials)
    return bool(user == os.geteuid())


def _call_with_address(call: Callable[[str], object], path: Path) -> None:
    """Bind or connect a socket to ``path``: the kernel takes 107 bytes, and TMPDIR may be longer."""
    folder = os.open(path.parent, os.O_PATH)
    try:
        call(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
