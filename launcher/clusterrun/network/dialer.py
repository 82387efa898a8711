"""Connects to node 0: all addresses of its name at once, port after port, with back-off."""

import os

from clusterrun.errors import RendezvousError
from clusterrun.loop import NEVER, Loop, Ready
from clusterrun.network.addresses import Address
from clusterrun.network.channel import OutgoingChannel
from clusterrun.network.handshake import BadFrame, HandshakeFailed
from clusterrun.network.join_failures import (
    NOT_CLUSTERRUN,
    DialProgress,
    connect_timeout_error,
    handshake_error,
    still_connecting_notice,
)
from clusterrun.network.joining_node import JoiningNode
from clusterrun.network.resolver import Lookup
from clusterrun.policy.events import Event
from clusterrun.policy.joining import SECONDS_BETWEEN_NOTICES, SECONDS_TO_FIRST_NOTICE

SECONDS_FOR_THE_FIRST = 0.05
"""How long the addresses before one that has answered may still answer: workers try them in that
order, too."""

SECONDS_BETWEEN_LOOKUPS = 5.0
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


class Dialer:
    """Looks node 0 up and connects again and again, until it answers or the time to join is over."""

    def __init__(
        self,
        node: JoiningNode,
        loop: Loop[Event],
        ready: Ready[Event],
        *,
        retries_forever: bool = False,
    ) -> None:
        """Begin to look up; ``loop`` calls ``ready`` when there is something to do.

        ``retries_forever``: without an end, and without notices that it still tries.
        """
        now = loop.clock()
        self._node = node
        self._loop = loop
        self._ready = ready
        self._lookup = Lookup(node.settings.host.value, loop, ready, now, node.outside.resolve)
        self._began = now
        self._gives_up = NEVER if retries_forever else now + node.settings.job.join.rdzv_timeout
        self._next_notice = NEVER if retries_forever else now + SECONDS_TO_FIRST_NOTICE
        self._look_up_again = now + SECONDS_BETWEEN_LOOKUPS
        self._outgoing: list[OutgoingChannel] = []
        self._answer_deadline = NEVER
        self._first_deadline = NEVER
        self._next_port = 0
        self._resume = now
        self._pause = FIRST_PAUSE
        self._errors: dict[tuple[Address, int], str] = {}

    @property
    def due(self) -> float:
        """When there is something to do even if nothing happens."""
        waits = min(self._next_notice, self._gives_up)
        if self._outgoing:
            # One that had answered may have ended meanwhile.
            has_answer = any(each.is_ready for each in self._outgoing)
            first = self._first_deadline if has_answer else NEVER
            return min(self._answer_deadline, first, waits)
        return min(self._resume if self.addresses else self._lookup.due, waits)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of node 0's name, as last looked up; () until it resolves."""
        return self._lookup.addresses

    def elapsed(self, now: float) -> float:
        """Return the seconds since it began."""
        return now - self._began

    def look_up(self, now: float) -> tuple[Address, ...]:
        """Return the addresses of node 0's name, once they are known.

        Raises:
            RendezvousError: it does not resolve in time.

        """
        self._lookup.turn(now)
        if not self.addresses:
            self._check_time(now)
        return self.addresses

    def dial(self, now: float) -> OutgoingChannel | None:
        """Do what is possible now; return the channel that has answered, now the caller's.

        Raises:
            RendezvousError: node 0 does not answer in time, or has another token or version.

        """
        if not self._outgoing:
            self._lookup.turn(now)
            if self.addresses and now >= self._resume:
                self._connect_to_all(now)
        answered = self._answered(now) if self._outgoing else None
        if answered is None:
            self._check_time(now)
        return answered

    def reject(self, outgoing: OutgoingChannel, why: str, now: float) -> None:
        """Close a channel that ``dial`` has returned, and try again."""
        self._fail(outgoing, why)
        self._go_to_next_port(now)

    def close(self) -> None:
        self._lookup.close()
        for each in self._outgoing:
            each.close()

    def _check_time(self, now: float) -> None:
        """Give up if it is time for that, or print that this node still tries."""
        settings = self._node.settings
        progress = DialProgress(self.addresses, self._lookup.error, self._errors)
        if now >= self._gives_up:
            raise connect_timeout_error(settings, progress, self._node.hello.rank)
        if now >= self._next_notice:
            self._next_notice = now + SECONDS_BETWEEN_NOTICES
            elapsed = f"{self.elapsed(now):.0f} s of {settings.job.join.rdzv_timeout:g} s"
            self._node.outside.notice(still_connecting_notice(settings, progress, elapsed))

    def _connect_to_all(self, now: float) -> None:
        port = self._node.settings.ports.value[self._next_port]
        self._answer_deadline = now + self._node.outside.seconds_to_answer
        self._first_deadline = NEVER
        for address in self.addresses:
            try:
                outgoing = OutgoingChannel(address, port, self._node.token)
            except OSError as error:
                self._errors[address, port] = os.strerror(error.errno or 0).lower()
            else:
                self._outgoing.append(outgoing)
                outgoing.watch(self._loop, self._ready)
        if not self._outgoing:
            self._go_to_next_port(now)

    def _answered(self, now: float) -> OutgoingChannel | None:
        for outgoing in tuple(self._outgoing):
            error = self._advance(outgoing)
            if error:
                self._fail(outgoing, error)
            elif outgoing.is_ready and self._is_chosen(outgoing, now):
                for other in self._outgoing:
                    if other is not outgoing:
                        other.close()
                self._outgoing = []
                return outgoing
        for outgoing in tuple(self._outgoing) if now >= self._answer_deadline else ():
            silent = f"no answer within {self._node.outside.seconds_to_answer:g} s"
            self._fail(outgoing, NOT_CLUSTERRUN if outgoing.connected else silent)
        if not self._outgoing:
            self._go_to_next_port(now)
        return None

    def _is_chosen(self, outgoing: OutgoingChannel, now: float) -> bool:
        """Return whether no address before this one can still answer in time."""
        self._first_deadline = min(self._first_deadline, now + SECONDS_FOR_THE_FIRST)
        return outgoing is self._outgoing[0] or now >= self._first_deadline

    def _advance(self, outgoing: OutgoingChannel) -> str:
        """Continue the handshake; return why it failed, "" if it did not."""
        try:
            outgoing.receive()
        except HandshakeFailed as failure:
            return self._handshake_failed(failure)
        except BadFrame as error:
            return f"it {error}"
        if outgoing.end is not None:
            return NOT_CLUSTERRUN if outgoing.connected else outgoing.trouble
        outgoing.watch(self._loop, self._ready)
        return ""

    def _handshake_failed(self, failure: HandshakeFailed) -> str:
        settings = self._node.settings
        error: RendezvousError | None = handshake_error(settings, failure)
        if error is None:
            return NOT_CLUSTERRUN
        if len(settings.ports.value) == 1:
            raise error
        return error.message

    def _fail(self, outgoing: OutgoingChannel, why: str) -> None:
        self._errors[outgoing.address, outgoing.port] = why
        outgoing.close()
        if outgoing in self._outgoing:
            self._outgoing.remove(outgoing)

    def _go_to_next_port(self, now: float) -> None:
        self._next_port = (self._next_port + 1) % len(self._node.settings.ports.value)
        if self._next_port > 0:
            self._resume = now
            return
        self._resume = now + self._pause
        self._pause = min(1.6 * self._pause, LONGEST_PAUSE)
        if now >= self._look_up_again:
            self._look_up_again = now + SECONDS_BETWEEN_LOOKUPS
            self._lookup.look_up_again(now)
