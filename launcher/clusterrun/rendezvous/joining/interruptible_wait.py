"""Waiting for others, with an ear for signals: nobody needs to wait any longer than he wants."""

import os
import select
import signal
from typing import Protocol

from clusterrun.coordination.notices import interrupted_while_waiting
from clusterrun.domain.events import SignalReceived
from clusterrun.domain.outcome import Interrupted
from clusterrun.errors import RendezvousError
from clusterrun.rendezvous.joining.agent_hooks import AgentHooks
from clusterrun.rendezvous.joining.joining_node import Candidate

ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

NEVER = float("inf")


class Party(Protocol):
    """Somebody who joins: a node in one of its roles."""

    failure: RendezvousError | None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when ``turn`` has something to do."""
        ...

    @property
    def finished(self) -> bool:
        """Whether it has come to an end, good or bad."""
        ...

    @property
    def due(self) -> float:
        """When ``turn`` is to be called even if nothing happens."""
        ...

    def turn(self, now: float) -> None:
        """Do all that can be done now."""
        ...

    def abandon(self, why: str, now: float) -> None:
        """Close everything, and tell those who wait for us."""
        ...

    def close(self) -> None:
        """Close everything."""
        ...


def wait_for(party: Party, candidate: Candidate, until: float = NEVER) -> Interrupted | None:
    """Wait until ``party`` has finished; return the signal that ended it before, if one did."""
    hooks = candidate.hooks
    with select.epoll() as epoll:
        epoll.register(hooks.inbox, select.EPOLLIN)
        epoll.register(party, select.EPOLLIN)
        now = hooks.clock()
        while not party.finished and now < until:
            due = min(party.due, until)
            epoll.poll(None if due == NEVER else max(0.0, due - now))
            now = hooks.clock()
            if number := _ending_signal(hooks, now):
                party.abandon(interrupted_while_waiting(candidate.hello.host, number), now)
                return Interrupted(number)
            party.turn(now)
    return None


def _ending_signal(hooks: AgentHooks, now: float) -> int:
    """Return the signal that has come and ends the job; 0 if none has."""
    for event in hooks.inbox.events(now):
        match event:
            case SignalReceived(number) if number in ENDING_SIGNALS:
                return number
            case SignalReceived(signal.SIGTSTP):
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                # No worker is there to forward it to.
                continue
    return 0
