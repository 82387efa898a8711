"""Importing before a fork may take long, and is not silent then."""

import select
import socket

from tests.workers.door import (
    Channel,
    ForkServerClient,
    ForkServerProcess,
)


def test_the_agent_hears_of_it() -> None:
    """The report has the module's name and the seconds so far, and is no event of a worker."""
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
