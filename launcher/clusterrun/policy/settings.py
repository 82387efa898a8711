"""Where and when the nodes of a job meet, as its options say."""

from msgspec import Struct

from clusterrun.bounds import as_name
from clusterrun.job.declarations import Setting
from clusterrun.job.job import Job
from clusterrun.job.options import Elasticity
from clusterrun.job.values import Endpoint

ENDPOINT_PORT = 29400
"""The port if ``--rdzv-endpoint`` names none: that of torchrun's c10d rendezvous."""

SECONDS_BETWEEN_HEARTBEATS = 1.0

MAX_HEARTBEATS_PER_SECOND = 4000
"""Heartbeats that node 0 has to answer, 7 to 12 us of its time each; in larger jobs each node sends them
more rarely."""

MIN_IN_A_TIMEOUT = 6
"""A lease is dated from the sending of a heartbeat, and ends a quarter of an interval before node 0 goes
on. In large jobs the timeout is longer than the option's for it."""

NODE_ZERO_SILENCE_INTERVALS = 2.0
"""Intervals after the timeout for which a member bears the silence of node 0."""

MEMBER_SILENCE_INTERVALS = 3.0
"""Intervals after the timeout for which node 0 bears the silence of a member: it finds out last."""


class HeartbeatRhythm(Struct, frozen=True):
    """Seconds between two heartbeats, and for how long a process may be stopped at no cost."""

    interval: float
    timeout: float

    def after(self, intervals: float) -> float:
        """Return the seconds of the timeout, and of some intervals more."""
        return self.timeout + intervals * self.interval


def silence(seconds: float) -> str:
    """Return why a silent node is lost, for messages."""
    return f"has been silent for {round(seconds, 1):g} s"


def heartbeat_rhythm(nodes: int, timeout: float) -> HeartbeatRhythm:
    """Return the rhythm of a job of ``nodes`` with this ``--heartbeat-timeout``."""
    usual = min(SECONDS_BETWEEN_HEARTBEATS, timeout / MIN_IN_A_TIMEOUT)
    interval = max(usual, nodes / MAX_HEARTBEATS_PER_SECOND)
    return HeartbeatRhythm(interval, max(timeout, MIN_IN_A_TIMEOUT * interval))


class RendezvousSettings(Struct, frozen=True):
    """A job, and where and when its nodes meet; node 0's settings hold."""

    job: Job
    """As this node has it."""
    nodes: int
    """How many nodes are expected, spares included."""
    host: Setting[str]
    """Name or address of node 0, without brackets."""
    ports: Setting[tuple[int, ...]]
    """Ports of node 0; its coordinator listens on the first one that is free."""
    keeps_rendezvous_port: bool
    """The coordinator listens for the whole job, and workers get another port
    (``--rdzv-endpoint``, ``MIN:MAX``); else workers get its port when all nodes have joined."""
    rhythm: HeartbeatRhythm
    workers_port: Setting[int | None] = Setting(None, "default")
    """The workers' port if ``keeps_rendezvous_port``; None: a free one."""

    @property
    def elasticity(self) -> Elasticity:
        """How the job lives with lost nodes; without ``Job.survives_node_loss``, one of them ends it."""
        return self.job.elasticity if self.job.survives_node_loss else Elasticity()

    @property
    def node_zero_silence(self) -> float:
        """Seconds for which a member bears the silence of node 0."""
        return self.rhythm.after(NODE_ZERO_SILENCE_INTERVALS)

    @property
    def member_silence(self) -> float:
        """Seconds for which node 0 bears the silence of a member."""
        return self.rhythm.after(MEMBER_SILENCE_INTERVALS)

    @property
    def place(self) -> str:
        """Where nodes meet, for messages: ``n0:29500``."""
        return str(Endpoint(self.host.value, self.ports.value[0]))

    @property
    def first(self) -> str:
        """The agent where the others meet, for messages."""
        return f"{self.job.agent_unit} 0"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the nodes by rank, for messages; () if unknown."""
        return () if self.job.tasks is not None else tuple(map(as_name, self.job.workers.hosts))

    @property
    def exports(self) -> str:
        """Variables that alone make this a job of several nodes, and how to ignore them; "" for none.

        They may be left over from another launch.
        """
        if not self.job.given.exports:
            return ""
        variables = ", ".join(self.job.given.exports)
        return f"{variables} are set in the environment: --cluster none ignores them"


def rendezvous_settings(job: Job) -> RendezvousSettings:
    """Return where and when the nodes of ``job`` meet."""
    host, ports = _host_and_ports(job)
    apart = (
        job.rendezvous.rdzv_endpoint is not None and job.rendezvous.master_port not in ports.value
    )
    return RendezvousSettings(
        job,
        job.agents,
        host,
        ports,
        # A node that joins too late gets its answer from the coordinator, not from torch's store.
        keeps_rendezvous_port=apart or job.last_call is not None or job.survives_node_loss,
        rhythm=heartbeat_rhythm(job.agents, job.failures.heartbeat_timeout),
        workers_port=job.setting("master_port") if apart else Setting(None, "default"),
    )


def _host_and_ports(job: Job) -> tuple[Setting[str], Setting[tuple[int, ...]]]:
    given = job.setting("rdzv_endpoint")
    if given.value is not None:
        endpoint = Endpoint.parse(given.value)
        port = ENDPOINT_PORT if endpoint.port is None else endpoint.port
        return Setting(endpoint.host, given.origin), Setting((port,), given.origin)
    host = Setting(job.rendezvous.master_addr or "", job.origin("master_addr"))
    if job.rendezvous.master_port is None:
        return host, job.setting("port_candidates")
    return host, Setting((job.rendezvous.master_port,), job.origin("master_port"))
