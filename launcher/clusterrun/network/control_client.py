"""The running jobs of this user on this host, as a command finds and asks them."""

import os
import select
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct
from msgspec.msgpack import Decoder

from clusterrun.network.channel import Channel
from clusterrun.network.control import PREFIX, pid_of, remove_stale_sockets
from clusterrun.network.handshake import BadFrame, HandshakeFailed, member_handshake
from clusterrun.network.requests import AnswerT, Describe, Description, Request
from clusterrun.policy.queries import Query
from clusterrun.user_sockets import connect_to

SECONDS_TO_DESCRIBE = 1.0
"""For all agents of this host, to answer which job they are part of."""

SECONDS_TO_ANSWER = 1.9

SECONDS_AFTER_QUERY = 0.7
"""An agent names what has not answered it before that."""

SECONDS_TO_CONNECT_AGAIN = 0.02
"""To an agent whose queue is full: the kernel does not report when it has room again."""


class RunningJob(Struct, frozen=True):
    """An agent of a job, and where it listens."""

    path: Path
    described: Description


class FoundJobs(Struct, frozen=True):
    """What listens on this host."""

    jobs: tuple[RunningJob, ...]
    silent: "tuple[SilentAgent, ...]"


class SilentAgent(Struct, frozen=True):
    """An agent that lives and can't be asked."""

    pid: int
    version: str = ""
    """How its version differs, in words; "": it is stopped, or very busy."""


class NoAnswer(Exception):
    """An agent does not answer."""


class VersionMismatch(NoAnswer):
    """An agent has another version of clusterrun."""


def find_jobs(folders: Iterable[Path], seconds: float = SECONDS_TO_DESCRIBE) -> FoundJobs:
    """Return the agents that listen in ``folders``; remove the sockets of those that were killed."""
    paths = []
    for folder in folders:
        remove_stale_sockets(folder)
        paths += sorted(folder.glob(f"{PREFIX}*"))
    answers = _ask_all(paths, Describe(), Description, seconds)
    jobs, silent = [], []
    for path in paths:
        match answers.get(path):
            case Description() as described:
                jobs.append(RunningJob(path, described))
            case None:
                if _lives(pid := pid_of(path)):
                    silent.append(SilentAgent(pid))
            case VersionMismatch() as why:
                silent.append(SilentAgent(pid_of(path), str(why)))
            case NoAnswer():
                # It is about to end.
                continue
    return FoundJobs(tuple(jobs), tuple(silent))


def ask(
    job: RunningJob, request: Request, kind: type[AnswerT], seconds: float | None = None
) -> AnswerT:
    """Send a request to an agent, and return its answer.

    Raises:
        NoAnswer: there is none within ``seconds``; None: what such a request needs.

    """
    if seconds is None:
        seconds = SECONDS_TO_ANSWER
        if isinstance(request, Query):
            seconds = request.seconds + SECONDS_AFTER_QUERY
    answer = _ask_all([job.path], request, kind, seconds).get(job.path)
    if answer is None:
        raise NoAnswer(f"no answer within {seconds:g} s")
    if isinstance(answer, NoAnswer):
        raise answer
    return answer


def _ask_all(
    paths: Iterable[Path], request: Request, kind: type[AnswerT], seconds: float
) -> Mapping[Path, AnswerT | NoAnswer]:
    """Ask all agents at once; return the answers in time, and why there will be no others."""
    deadline = time.monotonic() + seconds
    answers: dict[Path, AnswerT | NoAnswer] = {}
    decoder = Decoder(kind)
    unasked = list(paths)
    asked: dict[int, tuple[Path, Channel[AnswerT]]] = {}
    with ExitStack() as cleanup:
        while (unasked or asked) and (left := deadline - time.monotonic()) > 0:
            queue_is_full = []
            for path in unasked:
                try:
                    connection = connect_to(path, 0.0)
                except BlockingIOError:
                    queue_is_full.append(path)
                    continue
                except OSError:
                    answers[path] = NoAnswer("it has closed the connection")
                    continue
                channel = Channel(decoder, connection, member_handshake(b""))
                cleanup.callback(channel.close)
                # A process of this user's may send as much as it likes.
                channel.longest = sys.maxsize
                channel.send(request)
                asked[channel.fileno()] = path, channel
            unasked = queue_is_full
            if not (unasked or asked):
                # All of them have gone.
                break
            poll = select.poll()
            for descriptor, (_, channel) in asked.items():
                writes = select.POLLOUT if channel.wants_write else 0
                poll.register(descriptor, select.POLLIN | writes)
            wait = min(left, SECONDS_TO_CONNECT_AGAIN) if unasked else left
            for descriptor, _ in poll.poll(1000 * wait):
                path, channel = asked[descriptor]
                answer = _answer_of(channel)
                if answer is not None:
                    answers[path] = answer
                    del asked[descriptor]
    return answers


def _answer_of(channel: Channel[AnswerT]) -> AnswerT | NoAnswer | None:
    """Return the answer, or why none will come; None: it may come later."""
    try:
        received = channel.receive()
    except HandshakeFailed as failure:
        return VersionMismatch(f"it {failure}")
    except BadFrame:
        return VersionMismatch("it has another version of clusterrun")
    if received:
        return received[0]
    return None if channel.end is None else NoAnswer("it has closed the connection")


def _lives(pid: int) -> bool:
    """Return whether a process of this PID namespace has the id."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return pid > 0
