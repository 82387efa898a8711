"""Warm fork servers as the agent uses them: found by their sockets, asked for a child, ended.

``clusterrun.workers.fork_server.warm_server`` is the other end.
"""

import hashlib
import select
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from clusterrun.user_sockets import connect_to, socket_folders
from clusterrun.workers.fork_server.channel import Channel, Message
from clusterrun.workers.server_child import ServerChild

SECONDS_TO_ANSWER = 10.0
"""How long a warm fork server may take to fork, and to look at the files that it has imported."""

_PREFIX = "warm-"


def socket_in(folder: Path, command: Iterable[str]) -> Path:
    """Return the socket of the server for one program: ``warm-`` and 16 hexadecimal digits."""
    digest = hashlib.sha256("\0".join(command).encode("utf-8", "surrogateescape")).hexdigest()
    return folder / f"{_PREFIX}{digest[:16]}"


def connect(path: Path, request: Message, python: str) -> ServerChild | list[str]:
    """Ask the server that listens at ``path`` for a child.

    Args:
        path: of the socket.
        request: the ``serve`` message, which goes with this process's standard error.
        python: the interpreter of the workers.

    Returns:
        The child; or the names of what has changed since the server was started, [] if none listens.

    """
    channel = connected(path)
    if channel is None:
        return []
    channel.send({"kind": "serve", **request}, [2])
    answer = answer_of(channel, {"ready", "changed"}, SECONDS_TO_ANSWER)
    if answer is not None and answer["kind"] == "ready":
        return ServerChild(answer["pid"], channel, python)
    channel.close()
    return list(answer["what"]) if answer is not None else ["its answer"]


def end_warm_server(path: Path) -> bool:
    """Have the server at ``path`` end as soon as it has no job; return whether one listened."""
    channel = connected(path)
    if channel is not None:
        channel.send({"kind": "end"})
        # It has removed its socket once it closes the connection.
        answer_of(channel, (), SECONDS_TO_ANSWER)
        channel.close()
    with suppress(OSError):
        path.unlink()
    return channel is not None


def end_warm_servers(environ: Mapping[str, str]) -> int:
    """Have all warm fork servers of this user end; return how many there were."""
    sockets = [path for folder in socket_folders(environ) for path in folder.glob(f"{_PREFIX}*")]
    return sum(map(end_warm_server, sockets))


def answer_of(channel: Channel, kinds: Collection[str], seconds: float) -> Message | None:
    """Return the next message of these kinds, and drop others.

    None if the other end closes first, or takes longer than ``seconds``.
    """
    deadline = time.monotonic() + seconds
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while not channel.closed and (left := deadline - time.monotonic()) > 0:
        poll.poll(min(left, 60.0) * 1000)
        for message, _ in channel.receive():
            if message["kind"] in kinds:
                return message
    return None


def connected(path: Path) -> Channel | None:
    """Return a connection to this user's server that listens at ``path``; None if none does."""
    try:
        return Channel(connect_to(path, SECONDS_TO_ANSWER))
    except OSError:
        return None
