"""A node that wants to be a member: calls node 0, introduces itself, and waits for the others."""

import select

from msgspec.structs import replace

from clusterrun.coordination.heartbeat import Heartbeat
from clusterrun.coordination.messages import (
    Alive,
    FromCoordinator,
    Notice,
    Refusal,
    Refused,
    WorldFormed,
)
from clusterrun.coordination.wait_limits import Patience
from clusterrun.errors import RendezvousError
from clusterrun.rendezvous.joining.call import Call
from clusterrun.rendezvous.joining.dialler import Dialler
from clusterrun.rendezvous.joining.join_failures import (
    HUNG_UP,
    not_reached,
    not_reached_yet,
    silent,
)
from clusterrun.rendezvous.joining.joining_node import Candidate
from clusterrun.rendezvous.names.addresses import Address, interface_of
from clusterrun.rendezvous.wire.frames import (
    ALIVE,
    BadFrame,
)

SECONDS_OF_COURTESY = 5.0
"""Node 0 tells whose time is over; this much later a member does not wait for it any more."""


class Member:
    """One descriptor; ``turn`` does what can be done. Ends with ``formed`` or ``failure``."""

    def __init__(self, candidate: Candidate, patience: Patience, now: float) -> None:
        """Begin to call node 0."""
        self.formed: WorldFormed | None = None
        self.failure: RendezvousError | None = None
        self.refusal: Refusal | None = None
        """What node 0 wants us to do about ``failure``; None where it is not node 0 who says it."""
        self.early: list[FromCoordinator] = []
        """What node 0 said after ``formed`` and we have heard already."""
        self.interface = ""
        """The network interface by which we have reached node 0."""
        self._settings, self._hello, _, self._hooks = candidate
        self._patience = patience
        self._epoll = select.epoll()
        self._dialler = Dialler(candidate, self._epoll, now)
        self._call: Call | None = None
        self._heartbeat = Heartbeat(self._settings.rhythm, now)
        self._latest_end = 0.0

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when ``turn`` has something to do."""
        return self._epoll.fileno()

    @property
    def due(self) -> float:
        """When ``turn`` is to be called even if nothing happens."""
        if self._call is not None:
            return min(self._latest_end, self._heartbeat.due)
        return min(self._dialler.due, self._patience.due)

    @property
    def finished(self) -> bool:
        """Whether ``formed`` or ``failure`` is there."""
        return self.formed is not None or self.failure is not None

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of node 0's name, as last heard."""
        return self._dialler.addresses

    @property
    def is_let_in(self) -> bool:
        """Whether a node 0 has answered, and has not refused us."""
        return self._call is not None and self.failure is None

    def turn(self, now: float) -> None:
        """Do all that can be done now."""
        if self._call is None:
            self._dial(now)
        else:
            self._listen(self._call, now)
        if not self.finished:
            self._be_patient(now)

    def abandon(self, why: str, now: float) -> None:
        """Leave without a word: the job goes on waiting."""
        del why, now
        self.close()

    def close(self) -> None:
        """Close everything."""
        self._dialler.close()
        if self._call is not None:
            self._call.connection.close()
        self._epoll.close()

    def take_call(self) -> Call:
        """Return the connection to node 0, which is the caller's from now on."""
        call = self._call
        if call is None:
            raise AssertionError("nobody has let us in")
        self._epoll.unregister(call)
        self._call = None
        return call

    def _dial(self, now: float) -> None:
        call = self._dialler.turn(now)
        self.failure = self._dialler.failure
        if call is None:
            return
        self._call = call
        self._latest_end = now + self._patience.timeout + SECONDS_OF_COURTESY
        self._heartbeat = Heartbeat(self._settings.rhythm, now)
        call.connection.give_up_after(self._heartbeat.rhythm.timeout)
        call.connection.send(replace(self._hello, waited=self._patience.waited(now)))
        # Now, while there is time: later, the workers wait for it.
        self.interface = interface_of(call.connection.local_address, self._hooks.interfaces())
        self._listen(call, now)

    def _listen(self, call: Call, now: float) -> None:
        trouble = self._hear_all(call, now)
        if self.finished:
            return
        if self._heartbeat.wants_sign(now):
            call.connection.send_frame(ALIVE)
        if self._heartbeat.is_lost(now):
            trouble = trouble or f"node 0 {self._settings.rhythm.silence}"
        if trouble or call.connection.closed:
            self._call = None
            self._dialler.give_back(call, trouble or call.connection.trouble or HUNG_UP, now)
        else:
            self._epoll.modify(call, call.mask)

    def _hear_all(self, call: Call, now: float) -> str:
        """Hear what node 0 says; return why it is not our node 0, "" if it may be."""
        try:
            messages = call.messages()
        except BadFrame as error:
            return f"it {error}"
        if messages:
            self._heartbeat.heard(now)
        for index, message in enumerate(messages):
            match message:
                case Alive():
                    continue
                case Notice(text):
                    self._hooks.notice(text)
                case Refused():
                    return self._refused(message)
                case WorldFormed():
                    self.formed = message
                    self.early = messages[index + 1 :]
                    return ""
                case _:
                    return "it ends a job that has not begun"
        return ""

    def _refused(self, refused: Refused) -> str:
        if refused.refusal is Refusal.TRY_ELSEWHERE and len(self._settings.ports.value) > 1:
            return refused.text
        self.refusal = refused.refusal
        self.failure = RendezvousError(refused.text, refused.hint)
        return refused.text

    def _be_patient(self, now: float) -> None:
        if self._call is not None:
            if now >= self._latest_end:
                self.failure = silent(self._settings)
        elif self._patience.is_over(now):
            obstacle = self._dialler.obstacle
            self.failure = not_reached(self._settings, obstacle, self._hello.rank)
        elif self._patience.wants_notice(now):
            spent = self._patience.spent(now)
            self._hooks.notice(not_reached_yet(self._settings, self._dialler.obstacle, spent))
