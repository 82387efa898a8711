"""A coordinator without sockets, for replaying histories of events."""

from collections.abc import Sequence
from typing import Any

from tests.rendezvous.door import (
    OWN,
    PHASES_AFTER,
    Action,
    Actions,
    AgedFate,
    CoordinatorEvent,
    Disconnect,
    Done,
    EndedExternally,
    ExternalCause,
    Fate,
    FirstFailure,
    FromCoordinator,
    Hello,
    JobState,
    Notice,
    Paused,
    PreparePort,
    PrintOnNodeZero,
    Reason,
    Refused,
    RestartRules,
    Send,
    StacksMessage,
    Stop,
    StopListening,
    Succession,
    SuccessionKnown,
    Verdict,
    World,
    WorldFormed,
    coordinator_events,
    decide,
    due,
)
from tests.rendezvous.nodes import hello, opened_job


class Replay:
    """Replays a history; connection n is that of host ``n<n>``, ``OWN`` that of node 0."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        self.now = 0.0
        self.replies: list[Action] = []
        self.newest = OWN
        self.port = state.master_port
        """What the workers of the next attempt get."""
        self.unheard: set[int] = set()
        """Members that do not confirm that they know the coordinator's successors."""
        self._gone: set[int] = set()

    def happens(self, happening: CoordinatorEvent) -> Actions:
        """Let an event happen; return the coordinator's actions."""
        before = self.state.phase
        replies = decide(self.state, happening)
        assert self.state.phase in {before, *PHASES_AFTER[before]}
        self.replies += replies
        for reply in replies:
            # As the server does.
            for number in reply.connections if isinstance(reply, Disconnect) else ():
                self.goes(number)
            if isinstance(reply, Send) and isinstance(reply.message, Succession):
                self._confirm(reply.connections, reply.message.attempt)
            if isinstance(reply, PreparePort):
                self.happens(coordinator_events.PortReady(self.port, 0.0))
        return replies

    def _confirm(self, connections: Sequence[int], attempt: int) -> None:
        for number in connections:
            if number not in self._gone and number not in self.unheard:
                known = SuccessionKnown(attempt)
                self.happens(coordinator_events.MessageReceived(number, known, self.now))

    def calls(self) -> None:
        """A caller connects."""
        self.happens(coordinator_events.CallerConnected(self.now))

    def caller_leaves(self, refused: str = "") -> None:
        """A caller without a hello disconnects."""
        self.happens(coordinator_events.CallerGone(refused, self.now))

    def joins(self, number: int, **values: Any) -> None:
        """A node connects and introduces itself."""
        self.newest = number
        self.calls()
        self.introduces(number, hello(number, self.state.terms.nodes, **values))

    def introduces(self, number: int, introduction: Hello) -> None:
        """A caller sends its hello; its address has the number of its host if that has one."""
        digits = introduction.host.removeprefix("n")
        peer = f"10.0.0.{digits if digits.isdigit() else number}"
        self.happens(coordinator_events.HelloReceived(number, peer, introduction, self.now))

    def waits(self, seconds: float) -> None:
        """Time passes, and nothing else happens."""
        until = self.now + seconds
        while due(self.state) <= until:
            self.now = max(self.now, due(self.state))
            self.happens(coordinator_events.TimePassed(self.now))
        self.now = until

    def fails(self, number: int, fate: Fate, age: float = 0.0) -> None:
        """A member's first worker fails."""
        self._sends(number, FirstFailure(self.state.attempt.number, fate, age))

    def is_ended_externally(self, number: int, external_cause: ExternalCause) -> None:
        """Something ends the job on a member's node."""
        self._sends(number, EndedExternally(self.state.attempt.number, external_cause))

    def is_done(
        self,
        number: int,
        fates: Sequence[tuple[Fate, float]] = (),
        external_cause: ExternalCause | None = None,
    ) -> None:
        """All workers of a member have ended; each fate with its age."""
        aged = tuple(AgedFate(fate, age) for fate, age in fates)
        self._sends(number, Done(self.state.attempt.number, aged, external_cause))

    def sends_stacks(self, number: int, message: StacksMessage) -> Actions:
        """A member sends a message about its ranks' stacks."""
        return self.happens(coordinator_events.MessageReceived(number, message, self.now))

    def is_paused(self, number: int, *, paused: bool = True) -> None:
        """A member's user suspends it, or continues it."""
        self.happens(coordinator_events.MessageReceived(number, Paused(paused), self.now))

    def goes(self, number: int) -> None:
        """The connection to a member ends."""
        if number not in self._gone and number <= self.newest:
            self._gone.add(number)
            self.happens(coordinator_events.MemberGone(number, "", self.now))

    def is_silent(self, number: int) -> None:
        """A member has been silent for too long."""
        self.happens(coordinator_events.MemberSilent(number, self.now))

    def _sends(self, number: int, message: FirstFailure | EndedExternally | Done) -> None:
        # The server receives nothing from a closed connection.
        if number not in self._gone and number <= self.newest:
            self.happens(coordinator_events.MessageReceived(number, message, self.now))

    @property
    def notices(self) -> list[str]:
        """What was printed on node 0, by the coordinator or by its member."""
        printed = [reply.text for reply in self.replies if isinstance(reply, PrintOnNodeZero)]
        received = [message for message in self.sent_to(OWN) if isinstance(message, Notice)]
        return printed + [message.text for message in received]

    @property
    def disconnected(self) -> list[int]:
        """The connections that were closed, in order."""
        closed = (reply.connections for reply in self.replies if isinstance(reply, Disconnect))
        return [number for numbers in closed for number in numbers]

    @property
    def worlds(self) -> dict[int, World]:
        """The world that each connection got."""
        return {
            number: message.world
            for number, message in self.sent
            if isinstance(message, WorldFormed)
        }

    @property
    def refusals(self) -> dict[int, Refused]:
        """The refusal that each connection got."""
        return {number: message for number, message in self.sent if isinstance(message, Refused)}

    @property
    def verdicts(self) -> dict[int, Reason]:
        """The verdict that each connection got."""
        return {
            number: message.reason for number, message in self.sent if isinstance(message, Verdict)
        }

    @property
    def objections(self) -> list[str]:
        """Why there is no other attempt, as sent with the verdict."""
        return [message.no_restart for _, message in self.sent if isinstance(message, Verdict)]

    @property
    def stops(self) -> dict[int, str]:
        """The orders to stop, by connection, with their reasons."""
        return {number: message.why for number, message in self.sent if isinstance(message, Stop)}

    @property
    def sent(self) -> list[tuple[int, FromCoordinator]]:
        """All messages with their receivers, in order."""
        return [
            (number, reply.message)
            for reply in self.replies
            if isinstance(reply, Send)
            for number in reply.connections
        ]

    @property
    def port_is_closed(self) -> bool:
        """Whether the port is closed."""
        return any(isinstance(reply, StopListening) for reply in self.replies)

    def sent_to(self, number: int) -> list[FromCoordinator]:
        """Return what was sent to a connection, in order."""
        return [message for to, message in self.sent if to == number]


def running(nodes: int, restarts: int = 0, **rules: Any) -> Replay:
    """Return a job that ``nodes`` nodes have joined, each with one worker."""
    job = Replay(opened_job(nodes, restarts=RestartRules(restarts, **rules)))
    for number in range(1, nodes):
        job.joins(number, rank=number)
    return job
