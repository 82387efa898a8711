"""What a node is told before it joins, and what it says of itself."""

from collections.abc import Mapping

from msgspec import Struct

from clusterrun.coordination.heartbeat import Rhythm, rhythm_of
from clusterrun.coordination.restart_policy import RestartRules
from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.facts import Fact
from clusterrun.domain.last_call import LastCall


class RendezvousSettings(Struct, frozen=True):
    """Where and when the nodes of a job meet."""

    nodes: int
    host: Fact[str]
    """Name or address of node 0, without brackets."""
    ports: Fact[tuple[int, ...]]
    """Ports of node 0 to meet at: the first one that is free."""
    open_for_good: bool
    """Nodes meet at a port of their own, which stays open (``--rdzv-endpoint``, ``MIN:MAX``); else
    the workers get it once all nodes are there (``--master-port``)."""
    timeout: float
    """Seconds that all nodes have to come."""
    run_id: str
    """What node 0 calls the job where no run id was given."""
    heartbeat_timeout: float
    """Seconds of silence after which a node counts as lost."""
    restarts: RestartRules
    workers_port: Fact[int | None] = Fact(None, "default")
    """Which one that is, where it is ``open_for_good``; None: a free one."""
    last_call: LastCall | None = None
    """When the job begins though not all have come; None: never."""
    hosts: tuple[str, ...] = ()
    """Names of the nodes by rank, for people; () where nothing tells."""
    exports: str = ""
    """The variables that made this a job of several nodes, where they may be left over from another
    launch, and how to ignore them; "" where the user or a scheduler says so."""
    strict: bool = False
    """What should agree must (``--strict-join``)."""

    @property
    def said_nodes(self) -> str:
        """How many there are to be, as users say it: ``4`` or ``1:4``."""
        return f"{self.last_call.fewest}:{self.nodes}" if self.last_call else str(self.nodes)

    @property
    def rhythm(self) -> Rhythm:
        """How often nodes say that they live."""
        return rhythm_of(self.nodes, self.heartbeat_timeout)

    @property
    def place(self) -> str:
        """Where it is, for people: ``n0:29500``."""
        return str(Endpoint(self.host.value, self.ports.value[0]))


class Introduction(Struct, frozen=True):
    """What a node says of itself."""

    host: str
    pid: int
    user_id: int
    workers: int
    rank: int | None
    """None: node 0 if it has the address of ``RendezvousSettings.host``, else any that is free."""
    run_id: str
    """"" where none was given: then node 0's holds."""
    must: Mapping[str, str]
    """What all nodes must say alike, by name; the number of nodes is added to it."""
    should: Mapping[str, str]
    """What they had better say alike: script, a digest of its arguments, versions."""
    role: str = "default"
    """Of its workers, ``--role``: nodes may have different ones."""
