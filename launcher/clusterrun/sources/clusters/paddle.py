"""PaddleCloud, PaddleJob and paddle.distributed.launch: pods of a Paddle job.

PaddleCloud sets PADDLE_TRAINERS, an address for each pod, and PADDLE_TRAINER_ID, the pod's rank
(PaddlePaddle/Paddle 0189510, python/paddle/distributed/cloud_utils.py); the operator of a PaddleJob
sets PADDLE_TRAINER_ENDPOINTS; the launcher of Paddle 2 reads PADDLE_MASTER, PADDLE_NNODES and
PADDLE_RANK (launch/context/args_envs.py), and sets PADDLE_RANK_IN_NODE for its own workers.
"""

from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place
from clusterrun.sources.clusters.variables import WITHOUT_CLUSTER, Variables, check_rank

_LISTS = ("PADDLE_TRAINERS", "PADDLE_TRAINER_ENDPOINTS")


class Paddle(Cluster):
    markers = (*_LISTS, "PADDLE_NNODES")

    def detect(self, variables: Variables) -> str:
        is_worker = variables.text("PADDLE_RANK_IN_NODE", "PADDLE_LOCAL_RANK")
        return "" if is_worker else super().detect(variables)

    def place(self, inputs: Inputs) -> Place:
        variables = inputs.variables
        hosts = _hosts(variables)
        nodes = Fact(len(hosts.value), hosts.origin)
        if not hosts.value:
            nodes = variables.require("PADDLE_NNODES")
        rank = variables.number("PADDLE_TRAINER_ID", "PADDLE_RANK")
        if rank is not None:
            check_rank(rank, nodes)
        address, ports = _master(variables, hosts)
        return Place(
            nnodes=nodes,
            node_rank=rank or Fact(None, "default"),
            hosts=hosts,
            nproc_per_node=variables.gpus("PADDLE_NPROC_PER_NODE"),
            master_addr=address,
            port_candidates=ports,
            run_id=variables.text("PADDLE_JOB_ID"),
        )


class PaddleByName(Cluster):
    """A job without any variable, whose workers get Paddle's variables."""

    def detect(self, variables: Variables) -> str:  # noqa: ARG002 - no variable is needed
        return "--cluster"

    def place(self, inputs: Inputs) -> Place:  # noqa: ARG002 - as above
        """Return one node, unless options set more."""
        return Place(yields_to_options=True)


def _hosts(variables: Variables) -> Fact[tuple[str, ...]]:
    listed = variables.text(*_LISTS)
    if listed is None:
        return Fact((), "default")
    entries = [_endpoint(Fact(text, listed.origin)).host for text in listed.value.split(",")]
    return Fact(tuple(dict.fromkeys(entries)), listed.origin)


def _master(
    variables: Variables, hosts: Fact[tuple[str, ...]]
) -> tuple[Fact[str | None], Fact[tuple[int, ...]]]:
    """Return the address and the port of node 0."""
    no_port: Fact[tuple[int, ...]] = Fact((), "default")
    master = variables.text("PADDLE_MASTER")
    if master is None:
        first = Fact(hosts.value[0], hosts.origin) if hosts.value else Fact(None, "default")
        return first, no_port
    endpoint = _endpoint(master)
    port = Fact((endpoint.port,), master.origin) if endpoint.port else no_port
    return Fact(endpoint.host, master.origin), port


def _endpoint(text: Fact[str]) -> Endpoint:
    try:
        return Endpoint.parse(text.value.strip())
    except ValueError:
        raise UsageError(
            f"{text.origin}: {text.value!r} is not HOST or HOST:PORT", WITHOUT_CLUSTER
        ) from None
