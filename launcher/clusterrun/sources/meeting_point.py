"""Where the nodes meet: an address and a port, or an endpoint."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.sources import CommandLine, Layer, from_exports, value_of
from clusterrun.sources.clusters.cluster import Place

USUAL_PORT = 29500
"""The port at which several nodes meet if none is set: torchrun's."""


class Meeting(Struct, frozen=True):
    """Where this job's agents, and later its workers, find each other, if not at an endpoint."""

    master_addr: Fact[str | None]
    master_port: Fact[int | None]
    port_candidates: Fact[tuple[int, ...]] = Fact((), "default")


def settle_meeting(
    sources: Sequence[Layer], environ: Mapping[str, str], place: Place, line: CommandLine
) -> Meeting:
    """Return where to meet; with a single agent, nothing needs to be set."""
    endpoint = value_of("rdzv_endpoint", sources)
    if place.agents == 1:
        address = value_of("master_addr", sources, value_of("local_addr", sources))
        return Meeting(address, value_of("master_port", sources))
    if endpoint.value is not None:
        return _at_endpoint(endpoint, sources)
    # Exports count only here: scripts for workers often export the very port of --rdzv-endpoint.
    exports = from_exports(environ, place.ignored_exports)
    return _at_address((*sources, exports), place, line)


def _at_endpoint(endpoint: Fact[str | None], sources: Sequence[Layer]) -> Meeting:
    port = value_of("master_port", sources)
    taken = Endpoint.parse(endpoint.value or "").port
    if taken == 0:
        raise _unknown_port(endpoint.origin)
    if taken is not None and port.value == taken:
        raise UsageError(
            f"{endpoint.origin} and {port.origin} both use port {taken}",
            f"leave {port.origin} out: a free port is chosen for the workers",
        )
    return Meeting(value_of("master_addr", sources), port)


def _at_address(sources: Sequence[Layer], place: Place, line: CommandLine) -> Meeting:
    address = value_of("master_addr", sources, place.master_addr)
    if address.value is None:
        raise _no_address(place, line)
    is_port_set = any("master_port" in source for source in sources)
    if place.port_candidates.value and not is_port_set:
        return Meeting(address, Fact(None, "default"), place.port_candidates)
    port = value_of("master_port", sources, Fact(USUAL_PORT, "default"))
    if port.value is None:
        raise _unknown_port(port.origin)
    return Meeting(address, port)


def _unknown_port(origin: str) -> UsageError:
    return UsageError(
        f"{origin}: port 0 is chosen by each node, but all nodes must meet at one port",
        "give a number from 1 to 65535",
    )


def _no_address(place: Place, line: CommandLine) -> UsageError:
    nnodes = f"nnodes is {place.nnodes}"
    why = f": {place.no_address}" if place.no_address else ""
    if place.node_rank.value is not None:
        return UsageError(
            f"{nnodes}, but the address of node 0 is not set{why}",
            f"give its host name:\n  {line.line('--master-addr', 'HOST')}",
        )
    first, second = (line.line("--node-rank", rank, "--master-addr", "HOST") for rank in "01")
    others = "node 1" if place.nnodes.value == 2 else f"nodes 1 to {place.nnodes.value - 1}"
    return UsageError(
        f"{nnodes}, but the rank of this node and the address of node 0 are not set",
        f"on node 0, HOST:\n  {first}\non {others}:\n  {second}",
    )
