"""Importing before a fork may take long, and is not silent then."""

import select
import socket

from clusterrun.workers.channel import Channel
from clusterrun.workers.fork_server.preloading.template_trial import (
    SECONDS_BETWEEN_NOTICES,
    SECONDS_TO_FIRST_NOTICE,
    Notice,
)
from clusterrun.workers.fork_server_client import ForkServerClient
from clusterrun.workers.fork_server_process import ForkServerProcess


def test_when_people_are_told_what_is_imported() -> None:
    """Not of what most jobs import in time, then once, and again after a longer while."""
    notice = Notice(100.0)
    first = 100.0 + SECONDS_TO_FIRST_NOTICE

    due = [
        notice.is_due(at) for at in (first - 1, first, first + 1, first + SECONDS_BETWEEN_NOTICES)
    ]

    assert due == [False, True, False, True]


def test_the_agent_hears_of_it() -> None:
    """With the module's name and the seconds so far; it is no event of a worker."""
    ours, theirs = (Channel(sock) for sock in socket.socketpair())
    process = ForkServerProcess(0, ours, printed=-1, python="python", mask=())
    reports: list[tuple[str, float]] = []
    fork_server = ForkServerClient(
        process, lambda _prepared: None, lambda name, seconds: reports.append((name, seconds))
    )

    theirs.send({"kind": "importing", "module": "transformers", "seconds": 10.5})
    select.select([fork_server], [], [], 5)
    events = list(fork_server.events(0.0))

    assert (events, reports) == ([], [("transformers", 10.5)])
    ours.close()
    theirs.close()
