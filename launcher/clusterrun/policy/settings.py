"""Where the nodes of a job rendezvous, and how often they send heartbeats."""

from msgspec import Struct

from clusterrun.bounds import as_name
from clusterrun.job.declarations import Setting
from clusterrun.job.job import Job
from clusterrun.job.options import Elasticity
from clusterrun.job.values import Endpoint

ENDPOINT_PORT = 29400
"""The default port of ``--rdzv-endpoint``, as in torchrun's c10d rendezvous."""

SECONDS_BETWEEN_HEARTBEATS = 1.0

MAX_HEARTBEATS_PER_SECOND = 4000
"""At this rate node 0 spends 90 us on each; in larger jobs each node sends them less often."""

MIN_IN_A_TIMEOUT = 6
"""Heartbeats in a timeout. In large jobs the timeout is longer than ``--heartbeat-timeout`` for this."""

NODE_ZERO_SILENCE_INTERVALS = 2.0
"""Intervals after the timeout for which a member waits for a silent node 0."""

MEMBER_SILENCE_INTERVALS = 3.0
"""Intervals after the timeout for which node 0 waits for a silent member: longer than the member does."""


class HeartbeatRhythm(Struct, frozen=True):
    """The interval of heartbeats, and how long a process may be stopped without effect, in seconds."""

    interval: float
    timeout: float

    def after(self, intervals: float) -> float:
        """Return the timeout plus a number of intervals, in seconds."""
        return self.timeout + intervals * self.interval


def silence(seconds: float) -> str:
    """Return "has been silent for 18 s"."""
    return f"has been silent for {round(seconds, 1):g} s"


def heartbeat_rhythm(nodes: int, timeout: float) -> HeartbeatRhythm:
    """Return the rhythm of a job of ``nodes`` with this ``--heartbeat-timeout``."""
    usual = min(SECONDS_BETWEEN_HEARTBEATS, timeout / MIN_IN_A_TIMEOUT)
    interval = max(usual, nodes / MAX_HEARTBEATS_PER_SECOND)
    return HeartbeatRhythm(interval, max(timeout, MIN_IN_A_TIMEOUT * interval))


class RendezvousSettings(Struct, frozen=True):
    """A job, and where and when its nodes rendezvous; where nodes differ, node 0's apply."""

    job: Job
    """The job as this node resolved it."""
    nodes: int
    """The expected number of nodes, spares included."""
    host: Setting[str]
    """The name or address of node 0; an IPv6 address has no brackets."""
    ports: Setting[tuple[int, ...]]
    """Ports on node 0; the coordinator listens on the first free one."""
    keeps_rendezvous_port: bool
    """The coordinator listens as long as the job runs, and workers get another port; otherwise
    workers get the coordinator's port once all nodes have joined."""
    rhythm: HeartbeatRhythm
    workers_port: Setting[int | None] = Setting(None, "default")
    """The workers' port if ``keeps_rendezvous_port``; None: any free one."""

    @property
    def elasticity(self) -> Elasticity:
        """The job's options for lost nodes; the defaults if any lost node ends the job."""
        return self.job.elasticity if self.job.survives_node_loss else Elasticity()

    @property
    def node_zero_silence(self) -> float:
        """Seconds of silence after which a member declares node 0 lost."""
        return self.rhythm.after(NODE_ZERO_SILENCE_INTERVALS)

    @property
    def member_silence(self) -> float:
        """Seconds of silence after which node 0 declares a member lost."""
        return self.rhythm.after(MEMBER_SILENCE_INTERVALS)

    @property
    def endpoint(self) -> str:
        """The rendezvous endpoint, for messages: ``n0:29500``."""
        return str(Endpoint(self.host.value, self.ports.value[0]))

    @property
    def first(self) -> str:
        """Node 0's agent, for messages: "node 0", or "task 0"."""
        return f"{self.job.agent_unit} 0"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names by node rank, for messages; () if unknown."""
        return () if self.job.tasks is not None else tuple(map(as_name, self.job.workers.hosts))

    @property
    def exports(self) -> str:
        """The variables that alone make this a multi-node job, and how to ignore them; "" for none.

        They may be left over from another launch.
        """
        if not self.job.given.exports:
            return ""
        variables = ", ".join(self.job.given.exports)
        return f"{variables} are set in the environment: --cluster none ignores them"


def rendezvous_settings(job: Job) -> RendezvousSettings:
    """Return the settings of a job as its options say."""
    host, ports = _host_and_ports(job)
    apart = (
        job.rendezvous.rdzv_endpoint is not None and job.rendezvous.master_port not in ports.value
    )
    return RendezvousSettings(
        job,
        job.agents,
        host,
        ports,
        # A node that joins too late must get its answer from the coordinator, not from torch's store.
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
