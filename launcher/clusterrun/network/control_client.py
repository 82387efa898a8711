"""How a command finds the running jobs of this user on this host, and sends them requests."""

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
"""For all agents of this host to describe their jobs."""

SECONDS_TO_ANSWER = 1.9

SECONDS_AFTER_QUERY = 0.7
"""Added to a query's seconds. The agent's answer comes earlier and lists the nodes that are missing."""

SECONDS_TO_RECONNECT = 0.02
"""To an agent whose queue is full: the kernel does not report when it has room again."""


class RunningJob(Struct, frozen=True):
    """A job, and the socket of its agent on this host."""

    path: Path
    described: Description


class FoundJobs(Struct, frozen=True):
    """The agents on this host."""

    jobs: tuple[RunningJob, ...]
    silent: "tuple[SilentAgent, ...]"


class SilentAgent(Struct, frozen=True):
    """An agent that is alive but does not answer."""

    pid: int
    version: str | None = None
    """How its version differs, as text; None: the agent is stopped or very busy."""


class NoAnswer(Exception):
    """An agent does not answer: the text says why."""


class TimedOut(NoAnswer):
    """An agent is stopped or very busy."""


class VersionMismatch(NoAnswer):
    """An agent has a different version of clusterrun."""


def find_jobs(folders: Iterable[Path], seconds: float = SECONDS_TO_DESCRIBE) -> FoundJobs:
    """Return the agents whose sockets are in ``folders``; remove the sockets of dead agents."""
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
                if _is_alive(pid := pid_of(path)):
                    silent.append(SilentAgent(pid))
            case VersionMismatch() as why:
                silent.append(SilentAgent(pid_of(path), str(why)))
            case NoAnswer():
                # The agent is about to end.
                continue
    return FoundJobs(tuple(jobs), tuple(silent))


def ask(
    job: RunningJob, request: Request, kind: type[AnswerT], seconds: float | None = None
) -> AnswerT:
    """Send a request to an agent, and return its answer.

    Raises:
        NoAnswer: there is none within ``seconds``, by default the time that such a request needs.

    """
    if seconds is None:
        seconds = SECONDS_TO_ANSWER
        if isinstance(request, Query):
            seconds = request.seconds + SECONDS_AFTER_QUERY
    answer = _ask_all([job.path], request, kind, seconds).get(job.path)
    if answer is None:
        raise TimedOut(f"no answer within {seconds:g} s")
    if isinstance(answer, NoAnswer):
        raise answer
    return answer


def _ask_all(
    paths: Iterable[Path], request: Request, kind: type[AnswerT], seconds: float
) -> Mapping[Path, AnswerT | NoAnswer]:
    """Send a request to all agents at once; return the answers that came in time, or why there are none.

    An agent that may still answer is missing in the result.
    """
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
                # A process of the same user may send any amount.
                channel.max_body_bytes = sys.maxsize
                channel.send(request)
                asked[channel.fileno()] = path, channel
            unasked = queue_is_full
            if not (unasked or asked):
                # No agent is left.
                break
            poll = select.poll()
            for descriptor, (_, channel) in asked.items():
                writes = select.POLLOUT if channel.wants_write else 0
                poll.register(descriptor, select.POLLIN | writes)
            wait = min(left, SECONDS_TO_RECONNECT) if unasked else left
            for descriptor, _ in poll.poll(1000 * wait):
                path, channel = asked[descriptor]
                answer = _answer_of(channel)
                if answer is not None:
                    answers[path] = answer
                    del asked[descriptor]
    return answers


def _answer_of(channel: Channel[AnswerT]) -> AnswerT | NoAnswer | None:
    """Return the answer, or why there will be none; None if it may still come."""
    try:
        received = channel.receive()
    except HandshakeFailed as failure:
        return VersionMismatch(f"it {failure}")
    except BadFrame:
        return VersionMismatch("it runs a different version of clusterrun")
    if received:
        return received[0]
    return None if channel.end is None else NoAnswer("it has closed the connection")


def _is_alive(pid: int) -> bool:
    """Return whether this user has a process with this id in this PID namespace."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return pid > 0
