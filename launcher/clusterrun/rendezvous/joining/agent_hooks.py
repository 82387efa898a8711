"""What the rendezvous needs of the agent that it joins the nodes for, in its own words."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from clusterrun.domain.events import Event
from clusterrun.rendezvous.names.addresses import Interfaces, Resolve, all_addresses, own_interfaces


class Inbox(Protocol):
    """Where signals to this process arrive."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when one has come."""
        ...

    def events(self, now: float) -> Iterable[Event]:
        """Return those that have come, without blocking."""
        ...


class AgentHooks(NamedTuple):
    """Signals, people, time and files."""

    inbox: Inbox
    notice: Callable[[str], object]
    """Prints a line for people; it has no prefix yet."""
    clock: Callable[[], float]
    """Seconds that never jump."""
    interfaces: Callable[[], Interfaces] = own_interfaces
    """The network interfaces of this machine."""
    resolve: Resolve = all_addresses
    """Finds the addresses of a name; it may take its time, in a process of its own."""
