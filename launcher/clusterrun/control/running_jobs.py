"""The running jobs of this user on this host, as a command finds and asks them."""

import os
import select
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from clusterrun.control.control_socket import PREFIX, pid_of, remove_stale_sockets
from clusterrun.control.messages import (
    AnswerT,
    Describe,
    Description,
    Request,
    decode_answer,
    encode,
)
from clusterrun.user_sockets import connect_to

SECONDS_TO_DESCRIBE = 1.0
"""For all agents of this host, to answer which job they are part of."""

SECONDS_TO_LOOK = 1.9
"""An agent names what has not answered it before that."""

_READ_BYTES = 1 << 20


class RunningJob(Struct, frozen=True):
    """An agent of a job, and where it listens."""

    path: Path
    described: Description


class SilentAgent(Struct, frozen=True):
    """An agent that lives and does not answer: it is stopped, or very busy."""

    pid: int


class FoundJobs(Struct, frozen=True):
    """What listens on this host."""

    jobs: tuple[RunningJob, ...]
    silent: tuple[SilentAgent, ...]


class NoAnswer(Exception):
    """An agent does not answer, or has another version."""


class AgentGone(NoAnswer):
    """The agent has ended."""


def find_jobs(folders: Iterable[Path], seconds: float = SECONDS_TO_DESCRIBE) -> FoundJobs:
    """Return the agents that listen in ``folders``; remove the sockets of those that were killed."""
    paths = []
    for folder in folders:
        remove_stale_sockets(folder)
        paths += sorted(folder.glob(f"{PREFIX}*"))
    answers = _ask_all(paths, Describe(), seconds)
    jobs, silent = [], []
    for path in paths:
        try:
            jobs.append(RunningJob(path, decode_answer(answers[path], Description)))
        except KeyError:
            silent += [SilentAgent(pid) for pid in [pid_of(path)] if _lives(pid)]
        except ValueError:
            # It is about to end, or has another version.
            continue
    return FoundJobs(tuple(jobs), tuple(silent))


def ask(
    job: RunningJob, request: Request, kind: type[AnswerT], seconds: float = SECONDS_TO_LOOK
) -> AnswerT:
    """Send a request to an agent, and return its answer.

    Raises:
        NoAnswer: there is none; ``AgentGone``: the agent has ended.

    """
    data = _ask_all([job.path], request, seconds).get(job.path)
    if data is None:
        raise NoAnswer(f"no answer within {seconds:g} s")
    if not data:
        raise AgentGone("it has closed the connection")
    try:
        return decode_answer(data, kind)
    except ValueError:
        raise NoAnswer("it has another version of clusterrun") from None


def _ask_all(paths: Iterable[Path], request: Request, seconds: float) -> Mapping[Path, bytes]:
    """Return the answers that are whole in time; b"" of an agent that has gone."""
    deadline = time.monotonic() + seconds
    answers: dict[Path, bytes] = {}
    with ExitStack() as cleanup:
        poll = select.poll()
        asked: dict[int, tuple[Path, socket.socket, bytearray]] = {}
        for path in paths:
            try:
                connection = cleanup.enter_context(connect_to(path, max(0.1, seconds / 4)))
                connection.sendall(encode(request))
                connection.shutdown(socket.SHUT_WR)
            except TimeoutError:
                # Its queue is full: it accepts nothing.
                continue
            except OSError:
                answers[path] = b""
                continue
            poll.register(connection, select.POLLIN)
            asked[connection.fileno()] = path, connection, bytearray()
        while asked and (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left * 1000):
                path, connection, received = asked[descriptor]
                if data := _read(connection):
                    received += data
                    continue
                answers[path] = bytes(received)
                poll.unregister(descriptor)
                del asked[descriptor]
    return answers


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(_READ_BYTES)
    except OSError:
        return b""


def _lives(pid: int) -> bool:
    """Return whether a process of this PID namespace has the id."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return pid > 0
