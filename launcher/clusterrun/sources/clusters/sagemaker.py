"""Amazon SageMaker: containers of a training job (aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md)."""

from collections.abc import Mapping

import msgspec

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.variables import WITHOUT_CLUSTER, Variables


class SageMaker:
    """A container of the job."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the list of hosts."""
        return Variables(environ).sign("SM_HOSTS")

    def place(self, inputs: Inputs) -> Place:
        """Return the place of this host in the list, by which the toolkit's own torchrun goes too."""
        variables = Variables(inputs.variables)
        hosts = _hosts(inputs.variables.get("SM_HOSTS", ""))
        here = variables.text("SM_CURRENT_HOST")
        if here is None or here.value not in hosts.value:
            said = f"{here.origin} is {here.value}" if here else "SM_CURRENT_HOST is not set"
            raise UsageError(
                f"{said}, and {hosts.origin} lists {', '.join(hosts.value)}", WITHOUT_CLUSTER
            )
        return Place(
            nnodes=Fact(len(hosts.value), hosts.origin),
            node_rank=Fact(hosts.value.index(here.value), here.origin),
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
