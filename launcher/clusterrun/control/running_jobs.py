"""The running jobs of this user on this host, as a command finds and asks them."""

import socket
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from clusterrun.control.control_socket import PREFIX, remove_stale_sockets
from clusterrun.control.messages import Describe, Description, Request, decode_description, encode
from clusterrun.user_sockets import connect_to

SECONDS_TO_ANSWER = 5.0
"""An agent that is stopped (Ctrl-Z) does not answer."""


class RunningJob(Struct, frozen=True):
    """An agent of a job, and where it listens."""

    path: Path
    described: Description


def running_jobs(folder: Path) -> Iterator[RunningJob]:
    """Yield all agents of this user that answer; remove the sockets of those that were killed."""
    remove_stale_sockets(folder)
    for path in sorted(folder.glob(f"{PREFIX}*")):
        try:
            described = ask(path, Describe())
        except (OSError, ValueError):
            # It is about to end, is stopped, or has another version.
            continue
        else:
            yield RunningJob(path, described)


def ask(path: Path, request: Request) -> Description:
    """Send a request to the agent that listens at ``path``, and return its answer.

    Raises:
        OSError: there is none, or it does not answer.
        ValueError: its answer is not understood.

    """
    with connect_to(path, SECONDS_TO_ANSWER) as connection:
        connection.sendall(encode(request))
        connection.shutdown(socket.SHUT_WR)
        data = bytearray()
        while chunk := connection.recv(1 << 16):
            data += chunk
    return decode_description(bytes(data))
