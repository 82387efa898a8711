"""What the coordinator asks its server to do."""

from msgspec import Struct

from clusterrun.domain.messages import FromCoordinator


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

Actions = tuple[Action, ...]
"""In the order in which to perform them."""
