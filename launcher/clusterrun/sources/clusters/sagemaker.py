"""Amazon SageMaker: containers of a training job (aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md)."""

import msgspec

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place
from clusterrun.sources.clusters.variables import WITHOUT_CLUSTER


class SageMaker(Cluster):
    markers = ("SM_HOSTS",)

    def place(self, inputs: Inputs) -> Place:
        """Return the place of this host in the list; the toolkit counts its nodes the same way."""
        variables = inputs.variables
        hosts = _hosts(inputs.variables["SM_HOSTS"])
        own = variables.text("SM_CURRENT_HOST")
        if own is None or own.value not in hosts.value:
            own_host = f"is {own.value}" if own else "is not set"
            raise UsageError(
                f"SM_CURRENT_HOST {own_host}, but {hosts.origin} lists {', '.join(hosts.value)}",
                WITHOUT_CLUSTER,
            )
        return Place(
            nnodes=Fact(len(hosts.value), hosts.origin),
            node_rank=Fact(hosts.value.index(own.value), own.origin),
            hosts=hosts,
            nproc_per_node=variables.gpus("SM_NUM_GPUS"),
            master_addr=Fact(hosts.value[0], hosts.origin),
        )


def _hosts(text: str) -> Fact[tuple[str, ...]]:
    try:
        hosts = msgspec.json.decode(text, type=tuple[str, ...])
    except msgspec.MsgspecError:
        raise UsageError(f"SM_HOSTS: {text!r} is not a list in JSON", WITHOUT_CLUSTER) from None
    return Fact(hosts, "SM_HOSTS")
