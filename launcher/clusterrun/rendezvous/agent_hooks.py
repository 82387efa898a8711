"""What the rendezvous needs of the agent."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from clusterrun.domain.events import Event
from clusterrun.rendezvous.names.addresses import Interfaces, Resolve, all_addresses, own_interfaces
from clusterrun.rendezvous.names.resolver import resolves_for_others


class EventSource(Protocol):
    """Signals to this process, or a helper process."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there are ``events``."""
        ...

    def events(self, now: float) -> Iterable[Event]:
        """Return what has happened, without blocking."""
        ...


class AgentHooks(NamedTuple):
    """Signals, notices, time and names, as the agent provides them."""

    signals: EventSource
    notice: Callable[[str], object]
    """Prints a line for the user, and adds the prefix."""
    clock: Callable[[], float]
    """Returns monotonic seconds."""
    helpers: Sequence[EventSource] = ()
    """The helper processes: a node without them can't join."""
    interfaces: Callable[[], Interfaces] = own_interfaces
    resolve: Resolve = all_addresses
    """May block: it runs in a process of its own."""
    resolves_for_others: Callable[[str, Callable[[], float]], bool] = resolves_for_others
    """Takes the name of this host and the clock; asked once, when all nodes have joined."""
