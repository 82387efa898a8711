"""How a job's nodes meet: the one node alone, or all by way of node 0."""

import os
from collections.abc import Mapping, Sequence

from clusterrun.coordination.messages import ARGUMENTS
from clusterrun.coordination.restart_policy import rules_of
from clusterrun.domain.cpuset import runs
from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec
from clusterrun.rendezvous.joining.settings import Introduction, RendezvousSettings

ENDPOINT_PORT = 29400
"""Where agents meet if ``--rdzv-endpoint`` names no port: torchrun's c10d port."""

DIGITS = 8
"""Of a digest: a longer one would confirm a guess at a short secret beyond doubt."""

EXPORTED_SIZES = ("NNODES", "WORLD_SIZE")
"""Variables of no platform's own that say how many nodes there are."""


def settings_of(job: JobSpec) -> RendezvousSettings:
    """Return where the nodes of ``job``, of which there are several, meet."""
    host, ports = _place(job)
    at_endpoint = job.rdzv_endpoint.value is not None and job.master_port.value not in ports.value
    return RendezvousSettings(
        nodes=job.agents,
        host=host,
        ports=ports,
        # Who comes late is to be told, and by nobody's store.
        open_for_good=at_endpoint or job.last_call is not None,
        workers_port=job.master_port if at_endpoint else Fact(None, "default"),
        timeout=job.rdzv_timeout.value,
        run_id=job.run_id.value,
        heartbeat_timeout=job.heartbeat_timeout.value,
        restarts=rules_of(job),
        last_call=job.last_call,
        hosts=job.hosts.value if job.tasks.value is None else (),
        exports=_exports(job),
        strict=job.strict_join.value,
    )


def _exports(job: JobSpec) -> str:
    if job.cluster.value != "exports" or job.nnodes.origin not in EXPORTED_SIZES:
        return ""
    names = (job.nnodes.origin, job.node_rank.origin, job.master_addr.origin)
    set_ones = ", ".join(dict.fromkeys(name for name in names if name.isupper()))
    return f"{set_ones} are set in the environment: --cluster none ignores them"


def introduction_of(
    job: JobSpec, host: str, workers: int, versions: Mapping[str, str]
) -> Introduction:
    """Return what this node says of itself.

    Args:
        job: as this node has been told of it.
        host: this node's name.
        workers: how many it starts.
        versions: of the interpreter and of torch, by name, as far as they are known.

    """
    return Introduction(
        host=host,
        pid=os.getpid(),
        user_id=os.getuid(),
        workers=workers,
        rank=job.agent_rank,
        run_id="" if job.run_id.origin == "default" else job.run_id.value,
        must={
            "max_restarts": str(job.max_restarts.value),
            "no_restart_exit_codes": ",".join(runs(job.no_restart_exit_codes.value)) or "none",
            "no_fail_fast": "yes" if job.no_fail_fast.value else "no",
            "heartbeat_timeout": f"{job.heartbeat_timeout.value:g}",
            "hang_timeout": f"{job.hang_timeout.value or 0:g}",
        },
        should={
            "script": job.program.value.name,
            ARGUMENTS: digest_of(job.program.value.args),
            **versions,
        },
        role=job.role.value,
    )


def digest_of(arguments: Sequence[str]) -> str:
    """Return enough to tell different arguments apart, and too little to tell them by."""
    import hashlib

    # A NUL is in none of them.
    joined = "\0".join(arguments).encode(errors="surrogateescape")
    return hashlib.sha256(joined).hexdigest()[:DIGITS]


def _place(job: JobSpec) -> tuple[Fact[str], Fact[tuple[int, ...]]]:
    said = job.rdzv_endpoint
    if said.value is not None:
        endpoint = Endpoint.parse(said.value)
        port = ENDPOINT_PORT if endpoint.port is None else endpoint.port
        return Fact(endpoint.host, said.origin), Fact((port,), said.origin)
    host = Fact(job.master_addr.value or "", job.master_addr.origin)
    if job.master_port.value is None:
        return host, job.port_candidates
    return host, Fact((job.master_port.value,), job.master_port.origin)
