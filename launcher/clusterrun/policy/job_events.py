"""The events that the coordinator handles, and the actions that it returns.

``at`` is in seconds of the coordinator's monotonic clock.
"""

from msgspec import Struct

from clusterrun.policy.messages import AgentMessage, FromCoordinator, Hello


class CallerConnected(Struct, frozen=True):
    """A connection was accepted; no ``Hello`` has been received on it yet."""

    at: float


class CallerDisconnected(Struct, frozen=True):
    """A connection was closed before a ``Hello`` was received."""

    refused: str
    """The address and why it was refused: "10.0.0.2: it has a different token"; "": it was not."""
    at: float


class HelloReceived(Struct, frozen=True):
    """An agent at ``address`` asks to join."""

    connection: int
    address: str
    hello: Hello
    at: float


class MessageReceived(Struct, frozen=True):
    """A member has sent a message."""

    connection: int
    message: AgentMessage
    at: float


class MemberDisconnected(Struct, frozen=True):
    """The connection to a member is closed."""

    connection: int
    refused: str
    """As in ``CallerDisconnected``."""
    at: float
    has_ended: bool = True
    """The connection was closed in order, so no worker is left; else the agent may still run."""
    is_unreachable: bool = False
    """The host no longer responds."""


class NodeZeroWasStopped(Struct, frozen=True):
    """Node 0 itself was stopped, long enough for members to declare it lost."""

    seconds: float
    at: float


class MemberSilent(Struct, frozen=True):
    """A member has been silent for too long."""

    connection: int
    at: float


class TimePassed(Struct, frozen=True):
    """The time of ``Coordinator.due`` has been reached."""

    at: float


class PortReady(Struct, frozen=True):
    """The answer to ``PreparePort``: the master port of the next attempt."""

    port: int
    at: float


class JoinAbandoned(Struct, frozen=True):
    """Node 0 ends before all nodes have joined."""

    why: str
    at: float
    hint: str = ""


CoordinatorEvent = (
    CallerConnected
    | CallerDisconnected
    | HelloReceived
    | MessageReceived
    | MemberDisconnected
    | MemberSilent
    | NodeZeroWasStopped
    | TimePassed
    | PortReady
    | JoinAbandoned
)


# Actions.


class Send(Struct, frozen=True):
    """Send a message on each of these connections that is still open."""

    connections: tuple[int, ...]
    message: FromCoordinator


class Disconnect(Struct, frozen=True):
    """Close these connections once everything sent on them has been transmitted."""

    connections: tuple[int, ...]


class StopListening(Struct, frozen=True):
    """Accept no more connections, and reserve the port for the workers."""


class PreparePort(Struct, frozen=True):
    """Prepare the master port of the next attempt: the configured one, or else a new free one."""


class PrintOnNodeZero(Struct, frozen=True):
    """Print a line on node 0."""

    text: str


Action = Send | Disconnect | StopListening | PreparePort | PrintOnNodeZero
