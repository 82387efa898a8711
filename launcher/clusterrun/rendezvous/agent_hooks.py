"""What the rendezvous needs of the agent."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from clusterrun.network.addresses import Interfaces, Resolve, all_addresses, own_interfaces
from clusterrun.policy.event_source import DueSource, EventSource
from clusterrun.policy.events import SignalReceived
from clusterrun.rendezvous.names.resolver import resolves_for_others


class AgentHooks(NamedTuple):
    """Signals, notices, time and names, as the agent provides them, and how long it waits."""

    signals: EventSource
    notice: Callable[[str], object]
    """Prints a line for the user, and adds the prefix."""
    clock: Callable[[], float]
    """Returns monotonic seconds."""
    keep: Callable[[SignalReceived], object] = lambda _: None
    """Takes each signal that ends nothing: the agent may need it once its workers run."""
    renew_lease: Callable[[float | None], object] = lambda _: None
    """Takes the seconds after which workers are killed unless it is called again; None: never."""
    helpers: Sequence[EventSource] = ()
    """The helper processes: a node without them can't join."""
    requests: Sequence[DueSource] = ()
    """What this node's user asks for while it joins."""
    interfaces: Callable[[], Interfaces] = own_interfaces
    resolve: Resolve = all_addresses
    """May block: it runs in a process of its own."""
    resolves_for_others: Callable[[str, Callable[[], float]], bool] = resolves_for_others
    """Takes the name of this host and the clock; asked once, when all nodes have joined."""
    seconds_to_answer: float = 3.0
    """From connecting to node 0 to the end of the handshake; then the next port is tried."""
