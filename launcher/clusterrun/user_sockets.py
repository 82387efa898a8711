"""Unix sockets between processes of one user, in a folder that is closed to other users."""

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
"""What to do if there is no folder for sockets."""

MAX_ADDRESS_BYTES = 107
"""Of a socket's path (unix(7))."""


def socket_folder_candidates(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders that may have this user's sockets; new sockets go to the first private one.

    A job and a command about it may have different TMPDIR and XDG_RUNTIME_DIR: under Slurm a job has
    its own TMPDIR and no login session. So commands search all these folders. An XDG_RUNTIME_DIR
    that is not the login session's was set on purpose, and is then the only folder.
    """
    name = f"clusterrun-{os.getuid()}"
    parents = ("/tmp", "/var/tmp", environ.get("TMPDIR") or "/tmp")  # noqa: S108 - only if private
    common = [Path(parent) / name for parent in parents]
    login = Path(f"/run/user/{os.getuid()}/clusterrun")
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    first = [Path(runtime, "clusterrun")] if runtime and _is_own(runtime) else []
    if first and first != [login] and make_private_folder(first[0]):
        return tuple(first)
    return tuple(dict.fromkeys((*first, *common, login)))


def socket_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder for new sockets, which is made if missing; None if none is private.

    No other user may be able to write there, because commands trust whoever listens there.
    """
    return next(filter(make_private_folder, socket_folder_candidates(environ)), None)


def socket_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders that exist and are private."""
    folders = socket_folder_candidates(environ)
    return tuple(each for each in folders if os.access(each, os.X_OK) and make_private_folder(each))


def unusable_socket_folders(environ: Mapping[str, str]) -> str:
    """Return a message about folders that exist but are not private; "" if there is none."""
    unusable = list(_unusable(socket_folder_candidates(environ)))
    return f"{'; '.join(unusable)}: not used for the sockets of jobs" if unusable else ""


def _is_own(runtime: str) -> bool:
    """Return whether XDG_RUNTIME_DIR is this user's: after su it is the other user's, also for root."""
    try:
        return Path(runtime).stat().st_uid == os.getuid()
    except OSError:  # in some containers it does not exist
        return False


def _unusable(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid != os.getuid():
                yield f"{folder} belongs to user {found.st_uid}, not to you"
            elif not make_private_folder(folder):
                yield f"{folder} is not a folder that is closed to others (chmod 700)"


def make_private_folder(folder: Path) -> bool:
    """Make a folder if it is missing; return whether it is this user's and closed to others."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_ours and not found.st_mode & 0o077


def listen_at(path: Path) -> socket.socket:
    """Return a socket that listens at ``path``.

    Raises:
        OSError: ``path`` exists already, or can't be made.

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
    """Remove a socket, and its folder if that is then empty."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


def connect_to(path: Path, seconds: float) -> socket.socket:
    """Return a connection to this user's process that listens at ``path``.

    ``seconds`` is the time limit of each call on the connection.

    Raises:
        ConnectionRefusedError: the process that listened there was killed.
        PermissionError: another user's process listens there.
        OSError: no process listens there.

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
    """Return whether the process at the other end runs as this user (SO_PEERCRED, unix(7))."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _pid, user, _group = struct.unpack("3i", credentials)
    return bool(user == os.geteuid())


def _call_with_address(call: Callable[[str], object], path: Path) -> None:
    """Bind or connect a socket to ``path``, which may exceed the kernel's limit.

    Its own path is used if possible: systemd-tmpfiles removes old sockets from /tmp unless their path is
    in /proc/net/unix.
    """
    if len(os.fsencode(path)) <= MAX_ADDRESS_BYTES:
        call(str(path))
        return
    folder = os.open(path.parent, os.O_PATH)
    try:
        call(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
