"""What the options say of where and when the nodes of a job meet, and of its attempts."""

from msgspec import Struct

from clusterrun.bounds import as_name
from clusterrun.job.declaring import Fact
from clusterrun.job.job import Job, LastCall
from clusterrun.job.options import ElasticJoin, Failing, Losing, Suspending
from clusterrun.job.values import Endpoint, NodeRange

ENDPOINT_PORT = 29400
"""The port if ``--rdzv-endpoint`` names none: that of torchrun's c10d rendezvous."""

SECONDS_BETWEEN_HEARTBEATS = 1.0

MOST_HEARTBEATS_PER_SECOND = 1000
"""Heartbeats that node 0 has to answer; in larger jobs each node sends them more rarely."""

FEWEST_IN_A_TIMEOUT = 6
"""Leases are dated from sending, and confirmed one interval later: three would leave no room for one
late heartbeat. In large jobs the timeout is longer than the option's for it."""

HEARTBEATS_LATER = 2
"""How much later than an agent the coordinator finds out that they are cut off from each other."""


GROWS_AFTER = 30.0
"""Seconds from the first newcomer to the restart that lets it in, with all that have joined meanwhile."""


class HeartbeatRhythm(Struct, frozen=True):
    """Seconds between two heartbeats, and seconds of silence after which a node is lost."""

    interval: float
    timeout: float

    @property
    def silence(self) -> str:
        """Why a silent node is lost, for messages."""
        return f"has been silent for {round(self.timeout, 1):g} s"


def heartbeat_rhythm(nodes: int, timeout: float) -> HeartbeatRhythm:
    """Return the rhythm of a job of ``nodes`` with this ``--heartbeat-timeout``."""
    usual = min(SECONDS_BETWEEN_HEARTBEATS, timeout / FEWEST_IN_A_TIMEOUT)
    interval = max(usual, nodes / MOST_HEARTBEATS_PER_SECOND)
    return HeartbeatRhythm(interval, max(timeout, FEWEST_IN_A_TIMEOUT * interval))


class Terms(Struct, frozen=True):
    """Where and when the nodes of a job meet, as the options of this node say; node 0's terms hold."""

    nodes: int
    """How many nodes are expected, spares included."""
    host: Fact[str]
    """Name or address of node 0, without brackets."""
    ports: Fact[tuple[int, ...]]
    """Ports of node 0; its coordinator listens on the first one that is free."""
    keeps_joining_port: bool
    """The coordinator listens for the whole job, and workers get another port
    (``--rdzv-endpoint``, ``MIN:MAX``); else workers get its port when all nodes have joined."""
    timeout: float
    """Seconds in which all nodes have to join."""
    run_id: str
    rhythm: HeartbeatRhythm
    failing: Failing = Failing()
    suspending: Suspending = Suspending()
    at_endpoint: bool = False
    """``--rdzv-endpoint`` sets the host, not ``--master-addr``."""
    workers_port: Fact[int | None] = Fact(None, "default")
    """The workers' port if ``keeps_joining_port``; None: a free one."""
    last_call: LastCall | None = None
    """When the job starts with fewer nodes; None: never."""
    hosts: tuple[str, ...] = ()
    """Names of the nodes by rank, for messages; () if unknown."""
    exports: str = ""
    """Names the variables that make this a job of several nodes and may be left over from another
    launch, and how to ignore them; "" if an option or a scheduler sets the number of nodes."""
    losing: Losing = Losing()
    """Without any of its ways to live with lost nodes, or ``MIN:MAX``, a lost node ends the job."""
    working: NodeRange = NodeRange(1, 1)
    """How many nodes may work, with ``--nnodes MIN:MAX``; equal for a world that keeps its size."""

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes follows losses and newcomers."""
        return self.working.most > self.working.fewest

    @property
    def lives_on(self) -> bool:
        """Whether the job may go on without a lost node.

        Then nodes can join while it runs, workers run on leases, and an agent succeeds a lost coordinator.
        """
        return self.losing.spares > 0 or self.losing.rejoin_timeout > 0 or self.is_elastic

    @property
    def grows_after(self) -> float | None:
        """Seconds from a newcomer to the restart that lets it in; None: it waits for another reason."""
        joins_now = self.is_elastic and self.losing.elastic_join is ElasticJoin.NOW
        return GROWS_AFTER if joins_now else None

    @property
    def patience(self) -> HeartbeatRhythm:
        """Return how long the coordinator bears a member's silence.

        If the job goes on without a lost node, that node's agent must have found out first.
        """
        if not self.lives_on:
            return self.rhythm
        interval, timeout = self.rhythm.interval, self.rhythm.timeout
        return HeartbeatRhythm(interval, timeout + HEARTBEATS_LATER * interval)

    @property
    def place(self) -> str:
        """Where nodes meet, for messages: ``n0:29500``."""
        return str(Endpoint(self.host.value, self.ports.value[0]))


def terms_of(job: Job) -> Terms:
    """Return where and when the nodes of ``job`` meet."""
    host, ports = _host_and_ports(job)
    apart = job.meeting.rdzv_endpoint is not None and job.meeting.master_port not in ports.value
    return Terms(
        nodes=job.agents,
        host=host,
        ports=ports,
        # A node that joins too late gets its answer from the coordinator, not from torch's store.
        at_endpoint=job.given.at_endpoint,
        keeps_joining_port=apart or job.last_call is not None or job.outlives_nodes,
        workers_port=job.fact("master_port") if apart else Fact(None, "default"),
        timeout=job.joining.rdzv_timeout,
        run_id=job.joining.run_id,
        rhythm=heartbeat_rhythm(job.agents, job.failing.heartbeat_timeout),
        failing=job.failing,
        suspending=job.suspending,
        last_call=job.last_call,
        hosts=() if job.tasks is not None else tuple(map(as_name, job.workers.hosts)),
        exports=_exports(job),
        losing=job.losing if job.outlives_nodes else Losing(),
        working=job.workers.nnodes if job.is_elastic else NodeRange(1, 1),
    )


def _host_and_ports(job: Job) -> tuple[Fact[str], Fact[tuple[int, ...]]]:
    given = job.fact("rdzv_endpoint")
    if given.value is not None:
        endpoint = Endpoint.parse(given.value)
        port = ENDPOINT_PORT if endpoint.port is None else endpoint.port
        return Fact(endpoint.host, given.origin), Fact((port,), given.origin)
    host = Fact(job.meeting.master_addr or "", job.origin("master_addr"))
    if job.meeting.master_port is None:
        return host, job.fact("port_candidates")
    return host, Fact((job.meeting.master_port,), job.origin("master_port"))


def _exports(job: Job) -> str:
    if not job.given.exports:
        return ""
    variables = ", ".join(job.given.exports)
    return f"{variables} are set in the environment: --cluster none ignores them"
