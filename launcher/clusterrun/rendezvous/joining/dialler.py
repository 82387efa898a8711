"""Calls node 0, at all addresses of its name, port after port, until a clusterrun answers."""

import os
import select
from collections.abc import Iterable

from clusterrun.errors import RendezvousError
from clusterrun.rendezvous.joining.call import Call
from clusterrun.rendezvous.joining.join_failures import (
    NOT_CLUSTERRUN,
    Obstacle,
    fault_of_coordinator,
)
from clusterrun.rendezvous.joining.joining_node import Candidate
from clusterrun.rendezvous.names.addresses import Address
from clusterrun.rendezvous.names.resolver import Lookup
from clusterrun.rendezvous.wire.frames import (
    BadFrame,
)
from clusterrun.rendezvous.wire.handshake import (
    HandshakeFailed,
)

SECONDS_TO_ANSWER = 3.0
"""From a call to the greeting of who answers; all addresses of a name are called at once."""

SECONDS_FOR_THE_FIRST = 0.05
"""For the addresses that come before one that has answered: workers try them in that order, too."""

SECONDS_BETWEEN_LOOKUPS = 5.0
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0

NEVER = float("inf")


class Dialler:
    """Tries again and again; ``turn`` returns who has answered."""

    def __init__(self, candidate: Candidate, epoll: select.epoll, now: float) -> None:
        """Begin with the name; ``epoll`` watches for what happens."""
        self.failure: RendezvousError | None = None
        """Why it is of no use to go on: the only one that answers is not one to talk to."""
        self._settings = candidate.settings
        self._token = candidate.token
        self._epoll = epoll
        self._lookup = Lookup(self._settings.host.value, epoll, now, candidate.hooks.resolve)
        self._look_up_again = now + SECONDS_BETWEEN_LOOKUPS
        self._calls: list[Call] = []
        self._hang_up = NEVER
        self._settled = NEVER
        self._next_port = 0
        self._resume = now
        self._pause = FIRST_PAUSE
        self._troubles: dict[tuple[Address, int], str] = {}

    @property
    def due(self) -> float:
        """When ``turn`` is to be called even if nothing happens."""
        if self._calls:
            return min(self._hang_up, self._settled)
        return self._resume if self._lookup.addresses else self._lookup.due

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of the name; () while there are none."""
        return self._lookup.addresses

    @property
    def obstacle(self) -> Obstacle:
        """Why nobody was reached so far."""
        return Obstacle(self.addresses, self._lookup.trouble or "no answer yet", self._troubles)

    def turn(self, now: float) -> Call | None:
        """Do all that can be done now; return the call that was answered, for the caller to end."""
        if not self._calls:
            self._lookup.turn(now)
            if self._lookup.addresses and now >= self._resume:
                self._call_all(now)
        return self._hear_answers(now) if self._calls else None

    def give_back(self, call: Call, why: str, now: float) -> None:
        """Go on, because who answered ``call`` was not the right one."""
        self._fail(call, why)
        self._go_to_next_port(now)

    def close(self) -> None:
        """Call nobody any more."""
        self._lookup.close()
        self._hang_up_on(self._calls)

    def _call_all(self, now: float) -> None:
        port = self._settings.ports.value[self._next_port]
        self._hang_up = now + SECONDS_TO_ANSWER
        self._settled = NEVER
        for address in self._lookup.addresses:
            try:
                call = Call(address, port, self._token)
            except OSError as error:
                self._troubles[address, port] = os.strerror(error.errno or 0).lower()
            else:
                self._calls.append(call)
                self._epoll.register(call, call.mask)
        if not self._calls:
            self._go_to_next_port(now)

    def _hear_answers(self, now: float) -> Call | None:
        for call in tuple(self._calls):
            trouble = self._progress(call)
            if trouble:
                self._fail(call, trouble)
            elif call.connection.greeted and self._is_settled(call, now):
                self._calls.remove(call)
                self._hang_up_on(self._calls)
                return call
        for call in tuple(self._calls) if now >= self._hang_up else ():
            silent = f"no answer within {SECONDS_TO_ANSWER:g} s"
            self._fail(call, NOT_CLUSTERRUN if call.connected else silent)
        if not self._calls:
            self._go_to_next_port(now)
        return None

    def _is_settled(self, call: Call, now: float) -> bool:
        """Tell whether nobody who comes before ``call`` will answer as well, but for a moment."""
        self._settled = min(self._settled, now + SECONDS_FOR_THE_FIRST)
        return call is self._calls[0] or now >= self._settled

    def _progress(self, call: Call) -> str:
        """Let a call go on; return what is wrong with it, "" if nothing is."""
        try:
            call.messages()
        except HandshakeFailed as failure:
            return self._not_one_to_talk_to(failure)
        except BadFrame as error:
            return f"it {error}"
        if call.connection.closed:
            return NOT_CLUSTERRUN if call.connected else call.connection.trouble
        self._epoll.modify(call, call.mask)
        return ""

    def _not_one_to_talk_to(self, failure: HandshakeFailed) -> str:
        error = fault_of_coordinator(self._settings.place, failure)
        if error is None:
            return NOT_CLUSTERRUN
        if len(self._settings.ports.value) == 1:
            self.failure = error
        return error.message

    def _fail(self, call: Call, why: str) -> None:
        self._troubles[call.address, call.port] = why
        self._hang_up_on([call])
        if call in self._calls:
            self._calls.remove(call)

    def _hang_up_on(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self._epoll.unregister(call)
            call.connection.close()
        if calls is self._calls:
            self._calls = []

    def _go_to_next_port(self, now: float) -> None:
        self._next_port = (self._next_port + 1) % len(self._settings.ports.value)
        if self._next_port > 0:
            self._resume = now
            return
        self._resume = now + self._pause
        self._pause = min(1.6 * self._pause, LONGEST_PAUSE)
        if now >= self._look_up_again:
            self._look_up_again = now + SECONDS_BETWEEN_LOOKUPS
            self._lookup.again(now)
