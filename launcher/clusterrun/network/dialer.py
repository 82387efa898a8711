"""Connects to node 0: to all addresses of its name at once, to one port after another, with backoff."""

import os

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

SECONDS_FOR_EARLIER_ADDRESSES = 0.05
"""How long to wait, after one address has answered, for those that precede it: workers try the
addresses in the same order."""

SECONDS_BETWEEN_LOOKUPS = 5.0
MIN_BACKOFF = 0.05
MAX_BACKOFF = 1.0


class Dialer:
    """Resolves node 0's name and retries to connect, until node 0 answers or the join timeout passes."""

    def __init__(
        self,
        node: JoiningNode,
        loop: Loop[Event],
        ready: Ready[Event],
        *,
        retries_forever: bool = False,
    ) -> None:
        """Start to resolve; ``loop`` calls ``ready`` when there is something to do.

        ``retries_forever``: without a timeout, and without notices.
        """
        now = loop.clock()
        self._node = node
        self._loop = loop
        self._ready = ready
        self._lookup = Lookup(node.settings.host.value, loop, ready, now, node.context.resolve)
        self._began = now
        self._gives_up = NEVER if retries_forever else now + node.settings.job.join.rdzv_timeout
        self._next_notice = NEVER if retries_forever else now + SECONDS_TO_FIRST_NOTICE
        self._next_lookup = now + SECONDS_BETWEEN_LOOKUPS
        self._outgoing: list[OutgoingChannel] = []
        self._answer_deadline = NEVER
        self._choice_deadline = NEVER
        self._next_port = 0
        self._resume = now
        self._backoff = MIN_BACKOFF
        self._errors: dict[tuple[Address, int], str] = {}

    @property
    def due(self) -> float:
        """When to call ``dial`` or ``look_up`` even if no socket is ready."""
        waits = min(self._next_notice, self._gives_up)
        if self._outgoing:
            # The channel that had answered may have ended meanwhile.
            has_answer = any(each.is_ready for each in self._outgoing)
            choice = self._choice_deadline if has_answer else NEVER
            return min(self._answer_deadline, choice, waits)
        return min(self._resume if self.addresses else self._lookup.due, waits)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of node 0's name from the last lookup; () until it resolves."""
        return self._lookup.addresses

    def elapsed(self, now: float) -> float:
        """Return the seconds since the start."""
        return now - self._began

    def look_up(self, now: float) -> tuple[Address, ...]:
        """Return the addresses of node 0's name; () while they are not known.

        Raises:
            RendezvousError: the name did not resolve in time.

        """
        self._lookup.turn(now)
        if not self.addresses:
            self._check_time(now)
        return self.addresses

    def dial(self, now: float) -> OutgoingChannel | None:
        """Continue to connect; return a channel with a complete handshake, which the caller then owns.

        Raises:
            RendezvousError: node 0 did not answer in time, or has a different token or version.

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
        """Close a channel that ``dial`` has returned, and retry."""
        self._fail(outgoing, why)
        self._go_to_next_port(now)

    def close(self) -> None:
        self._lookup.close()
        for each in self._outgoing:
            each.close()

    def _check_time(self, now: float) -> None:
        """Give up at the timeout; print the notice that this node still tries when it is due."""
        settings = self._node.settings
        progress = DialProgress(self.addresses, self._lookup.error, self._errors)
        if now >= self._gives_up:
            raise connect_timeout_error(settings, progress, self._node.hello.rank)
        if now >= self._next_notice:
            self._next_notice = now + SECONDS_BETWEEN_NOTICES
            elapsed = f"{self.elapsed(now):.0f} s of {settings.job.join.rdzv_timeout:g} s"
            self._node.context.notice(still_connecting_notice(settings, progress, elapsed))

    def _connect_to_all(self, now: float) -> None:
        port = self._node.settings.ports.value[self._next_port]
        self._answer_deadline = now + self._node.context.seconds_to_answer
        self._choice_deadline = NEVER
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
            if error is not None:
                self._fail(outgoing, error)
            elif outgoing.is_ready and self._is_chosen(outgoing, now):
                for other in self._outgoing:
                    if other is not outgoing:
                        other.close()
                self._outgoing = []
                return outgoing
        for outgoing in tuple(self._outgoing) if now >= self._answer_deadline else ():
            silent = f"no answer within {self._node.context.seconds_to_answer:g} s"
            self._fail(outgoing, NOT_CLUSTERRUN if outgoing.connected else silent)
        if not self._outgoing:
            self._go_to_next_port(now)
        return None

    def _is_chosen(self, outgoing: OutgoingChannel, now: float) -> bool:
        """Return whether no address that precedes this one can still answer in time."""
        self._choice_deadline = min(self._choice_deadline, now + SECONDS_FOR_EARLIER_ADDRESSES)
        return outgoing is self._outgoing[0] or now >= self._choice_deadline

    def _advance(self, outgoing: OutgoingChannel) -> str | None:
        """Continue the handshake; return why it failed, if it did."""
        try:
            outgoing.receive()
        except HandshakeFailed as failure:
            return self._handshake_failed(failure)
        except BadFrame as error:
            return f"it {error}"
        if outgoing.end is None:
            outgoing.watch(self._loop, self._ready)
            return None
        if outgoing.connected or outgoing.error_text is None:
            return NOT_CLUSTERRUN
        return outgoing.error_text

    def _handshake_failed(self, failure: HandshakeFailed) -> str:
        error = handshake_error(self._node.settings, failure)
        if error is None:
            return NOT_CLUSTERRUN
        if len(self._node.settings.ports.value) == 1:
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
        self._resume = now + self._backoff
        self._backoff = min(1.6 * self._backoff, MAX_BACKOFF)
        if now >= self._next_lookup:
            self._next_lookup = now + SECONDS_BETWEEN_LOOKUPS
            self._lookup.look_up_again(now)
