"""Connects to node 0: all addresses of its name at once, port after port, with back-off."""

import os
import select
from collections.abc import Iterable

from clusterrun.errors import RendezvousError
from clusterrun.network.addresses import Address
from clusterrun.network.channel import BadFrame, Outgoing
from clusterrun.network.handshake import HandshakeFailed
from clusterrun.policy.event_source import NEVER
from clusterrun.rendezvous.joining.join_failures import (
    NOT_CLUSTERRUN,
    DialProgress,
    handshake_error,
)
from clusterrun.rendezvous.joining.joining_node import JoiningNode
from clusterrun.rendezvous.names.resolver import Lookup

SECONDS_FOR_THE_FIRST = 0.05
"""How long the addresses before one that has answered may still answer: workers try them in that
order, too."""

SECONDS_BETWEEN_LOOKUPS = 5.0
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


class Dialer:
    """Connects again and again until node 0 answers; ``epoll`` watches all it waits for."""

    def __init__(self, node: JoiningNode, epoll: select.epoll, now: float) -> None:
        self.failure: RendezvousError | None = None
        """Why trying again is of no use: the token or the version of node 0 is another."""
        self._terms = node.terms
        self._token = node.token
        self._seconds_to_answer = node.hooks.seconds_to_answer
        self._epoll = epoll
        self._lookup = Lookup(self._terms.host.value, epoll, now, node.hooks.resolve)
        self._look_up_again = now + SECONDS_BETWEEN_LOOKUPS
        self._outgoing: list[Outgoing] = []
        self._answer_deadline = NEVER
        self._first_deadline = NEVER
        self._next_port = 0
        self._resume = now
        self._pause = FIRST_PAUSE
        self._errors: dict[tuple[Address, int], str] = {}

    @property
    def due(self) -> float:
        """When ``turn`` is due even if nothing happens."""
        if self._outgoing:
            return min(self._answer_deadline, self._first_deadline)
        return self._resume if self._lookup.addresses else self._lookup.due

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of node 0's name; () until it resolves."""
        return self._lookup.addresses

    @property
    def progress(self) -> DialProgress:
        return DialProgress(self.addresses, self._lookup.error, self._errors)

    def turn(self, now: float) -> Outgoing | None:
        """Do what is possible now; return the connection that has answered, now the caller's."""
        if not self._outgoing:
            self._lookup.turn(now)
            if self._lookup.addresses and now >= self._resume:
                self._connect_to_all(now)
        return self._answered(now) if self._outgoing else None

    def reject(self, outgoing: Outgoing, why: str, now: float) -> None:
        """Close a connection that ``turn`` has returned, and try again."""
        self._fail(outgoing, why)
        self._go_to_next_port(now)

    def close(self) -> None:
        self._lookup.close()
        self._close_connections(self._outgoing)

    def _connect_to_all(self, now: float) -> None:
        port = self._terms.ports.value[self._next_port]
        self._answer_deadline = now + self._seconds_to_answer
        self._first_deadline = NEVER
        for address in self._lookup.addresses:
            try:
                outgoing = Outgoing(address, port, self._token)
            except OSError as error:
                self._errors[address, port] = os.strerror(error.errno or 0).lower()
            else:
                self._outgoing.append(outgoing)
                outgoing.watch(self._epoll)
        if not self._outgoing:
            self._go_to_next_port(now)

    def _answered(self, now: float) -> Outgoing | None:
        for outgoing in tuple(self._outgoing):
            error = self._advance(outgoing)
            if error:
                self._fail(outgoing, error)
            elif outgoing.is_ready and self._is_chosen(outgoing, now):
                self._outgoing.remove(outgoing)
                self._close_connections(self._outgoing)
                return outgoing
        for outgoing in tuple(self._outgoing) if now >= self._answer_deadline else ():
            silent = f"no answer within {self._seconds_to_answer:g} s"
            self._fail(outgoing, NOT_CLUSTERRUN if outgoing.connected else silent)
        if not self._outgoing:
            self._go_to_next_port(now)
        return None

    def _is_chosen(self, outgoing: Outgoing, now: float) -> bool:
        """Return whether no address before this one can still answer in time."""
        self._first_deadline = min(self._first_deadline, now + SECONDS_FOR_THE_FIRST)
        return outgoing is self._outgoing[0] or now >= self._first_deadline

    def _advance(self, outgoing: Outgoing) -> str:
        """Continue the handshake; return why it failed, "" if it did not."""
        try:
            outgoing.receive()
        except HandshakeFailed as failure:
            return self._handshake_failed(failure)
        except BadFrame as error:
            return f"it {error}"
        if outgoing.end is not None:
            return NOT_CLUSTERRUN if outgoing.connected else outgoing.trouble
        outgoing.watch(self._epoll)
        return ""

    def _handshake_failed(self, failure: HandshakeFailed) -> str:
        error = handshake_error(self._terms, failure)
        if error is None:
            return NOT_CLUSTERRUN
        if len(self._terms.ports.value) == 1:
            self.failure = error
        return error.message

    def _fail(self, outgoing: Outgoing, why: str) -> None:
        self._errors[outgoing.address, outgoing.port] = why
        self._close_connections([outgoing])
        if outgoing in self._outgoing:
            self._outgoing.remove(outgoing)

    def _close_connections(self, outgoing: Iterable[Outgoing]) -> None:
        for each in outgoing:
            each.unwatch(self._epoll)
            each.close()
        if outgoing is self._outgoing:
            self._outgoing = []

    def _go_to_next_port(self, now: float) -> None:
        self._next_port = (self._next_port + 1) % len(self._terms.ports.value)
        if self._next_port > 0:
            self._resume = now
            return
        self._resume = now + self._pause
        self._pause = min(1.6 * self._pause, LONGEST_PAUSE)
        if now >= self._look_up_again:
            self._look_up_again = now + SECONDS_BETWEEN_LOOKUPS
            self._lookup.look_up_again(now)
