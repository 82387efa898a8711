"""What can happen to the whole job, and what its coordinator then asks its edges to do."""

from msgspec import Struct

from clusterrun.policy.messages import AgentMessage, FromCoordinator, Hello


class CallerConnected(Struct, frozen=True):
    """A caller has connected; it has sent no ``Hello`` yet."""

    at: float


class CallerDisconnected(Struct, frozen=True):
    """The connection to a caller that had sent no ``Hello`` is closed."""

    refused: str
    """The caller's address and why it was refused: "10.0.0.2: it has a different token"; or ""."""
    at: float


class HelloReceived(Struct, frozen=True):
    """A caller at ``address`` asks to join."""

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
    """Its end was orderly: no worker is left there. Else the agent may still run."""
    is_unreachable: bool = False
    """Its host no longer answers."""


class NodeZeroWasStopped(Struct, frozen=True):
    """Node 0 itself was stopped, for long enough that members may have given it up."""

    seconds: float
    at: float


class MemberSilent(Struct, frozen=True):
    """A member has sent nothing for too long."""

    connection: int
    at: float


class TimePassed(Struct, frozen=True):
    """The time that ``Coordinator.due`` returned is reached."""

    at: float


class PortReady(Struct, frozen=True):
    """The workers of the next attempt can meet at ``port``: the answer to ``PreparePort``."""

    port: int
    at: float


class JoinAbandoned(Struct, frozen=True):
    """Node 0 gives up before all nodes have joined."""

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


# What is to be done.


class Send(Struct, frozen=True):
    """Send one message to those of these connections that are still open."""

    connections: tuple[int, ...]
    message: FromCoordinator


class Disconnect(Struct, frozen=True):
    """Close these connections once all that was sent to them has left."""

    connections: tuple[int, ...]


class StopListening(Struct, frozen=True):
    """Accept no further connection, and hold the port for the workers."""


class PreparePort(Struct, frozen=True):
    """Make the workers' port ready for another attempt: a given one is kept, a chosen one fresh."""


class PrintOnNodeZero(Struct, frozen=True):
    """Print one line on node 0."""

    text: str


Action = Send | Disconnect | StopListening | PreparePort | PrintOnNodeZero
