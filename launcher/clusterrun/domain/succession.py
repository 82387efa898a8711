"""What an agent knows, and says, so that the job outlives the loss of its coordinator."""

from msgspec import Struct

from clusterrun.domain.bounds import Count, Line, Name, Port, Seconds, Size


class Standby(Struct, frozen=True):
    """Ports that an agent holds for the case that it succeeds the coordinator, or gets rank 0."""

    port: Port
    """It listens there for other agents that have lost the coordinator."""
    workers_port: Port
    """Where all workers meet if this node gets rank 0 and the coordinator is on another node."""


class Successor(Struct, frozen=True):
    """An agent that may succeed the coordinator."""

    identity: Name
    node_rank: Count
    address: Name
    port: Port


class Place(Struct, frozen=True):
    """Who has a place, by node rank."""

    host: Name
    workers: Size
    role: Name


class Claim(Struct, frozen=True):
    """What an agent that has lost its coordinator says to a successor: its workers have ended."""

    attempt: Count
    coordinator: Name
    """The identity of the lost one."""
    node_rank: Count | None
    """None: it has no place, and waits for one."""
    since: Count
    """The first attempt among whose agents it was."""
    knows_attempts: bool
    """It has, or has had, a place."""
    age: Seconds = 0.0
    """Seconds since it received something from the lost one, or from a successor that is lost, too."""


class HostFaults(Struct, frozen=True):
    """Failures of workers that faults of their machine have caused."""

    host: Name
    count: Size
    last: Line
    """What pointed to the machine the last time: ``SIGBUS``."""


class Progress(Struct, frozen=True):
    """What the job has been through; the next coordinator counts on."""

    restarts: Count = 0
    losses: Count = 0
    quick_restarts: Count = 0
    requested_by: Line = ""
    """Who wants a suspension; "": none has asked."""
    faults: tuple[HostFaults, ...] = ()
