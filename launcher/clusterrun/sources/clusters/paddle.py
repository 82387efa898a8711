"""PaddleCloud, PaddleJob and paddle.distributed.launch: pods of a Paddle job.

PaddleCloud has PADDLE_TRAINERS, an address for each pod, and PADDLE_TRAINER_ID, the pod's rank
(PaddlePaddle/Paddle 0189510, python/paddle/distributed/cloud_utils.py); the operator a PaddleJob's
PADDLE_TRAINER_ENDPOINTS; the launcher of Paddle 2 reads PADDLE_MASTER, PADDLE_NNODES and
PADDLE_RANK (launch/context/args_envs.py). Its own workers have a place among those of their node.
"""

from collections.abc import Mapping

from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.variables import WITHOUT_CLUSTER, Variables, expect_rank

_LISTS = ("PADDLE_TRAINERS", "PADDLE_TRAINER_ENDPOINTS")
_OF_WORKERS = ("PADDLE_RANK_IN_NODE", "PADDLE_LOCAL_RANK")


class Paddle:
    """A pod of a job."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the pods, or with their number."""
        variables = Variables(environ)
        found = variables.text(*_LISTS, "PADDLE_NNODES")
        return found.origin if found and not variables.text(*_OF_WORKERS) else ""

    def place(self, inputs: Inputs) -> Place:
        """Return the pod's place."""
        variables = Variables(inputs.variables)
        hosts = _hosts(variables)
        nodes = Fact(len(hosts.value), hosts.origin)
        if not hosts.value:
            nodes = variables.expect("PADDLE_NNODES")
        rank = variables.number("PADDLE_TRAINER_ID", "PADDLE_RANK")
        if rank is not None:
            expect_rank(rank, nodes)
        master = _master(variables)
        first = Fact(hosts.value[0], hosts.origin) if hosts.value else Fact(None, "default")
        return Place(
            nnodes=nodes,
            node_rank=rank or Fact(None, "default"),
            hosts=hosts,
            nproc_per_node=variables.gpus("PADDLE_NPROC_PER_NODE"),
            master_addr=Fact(master.value.host, master.origin) if master else first,
            port_candidates=Fact((master.value.port,), master.origin)
            if master and master.value.port
            else Fact((), "default"),
            run_id=variables.text("PADDLE_JOB_ID"),
        )


class PaddleByName:
    """A job for Paddle where no variable says anything: its workers still get Paddle's variables."""

    def sign(self, environ: Mapping[str, str]) -> str:  # noqa: ARG002 - nothing need be set
        """Return that it has been named."""
        return "--cluster"

    def place(self, inputs: Inputs) -> Place:  # noqa: ARG002 - as above
        """Return one node, unless flags say more."""
        return Place(
            nnodes=Fact(1, "default"),
            node_rank=Fact(None, "default"),
            hosts=Fact((), "default"),
            tentative=True,
        )


def _hosts(variables: Variables) -> Fact[tuple[str, ...]]:
    said = variables.text(*_LISTS)
    if said is None:
        return Fact((), "default")
    entries = [_endpoint(Fact(text, said.origin)).host for text in said.value.split(",")]
    return Fact(tuple(dict.fromkeys(entries)), said.origin)


def _master(variables: Variables) -> Fact[Endpoint] | None:
    said = variables.text("PADDLE_MASTER")
    return Fact(_endpoint(said), said.origin) if said else None


def _endpoint(said: Fact[str]) -> Endpoint:
    try:
        return Endpoint.parse(said.value.strip())
    except ValueError:
        raise UsageError(
            f"{said.origin}: {said.value!r} is not HOST or HOST:PORT", WITHOUT_CLUSTER
        ) from None
