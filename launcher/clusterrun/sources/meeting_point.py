"""Where the nodes meet: an address and a port, or an endpoint."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.command_line import CommandLine
from clusterrun.sources.options.rows.meeting import (
    LOCAL_ADDR,
    MASTER_ADDR,
    MASTER_PORT,
    RDZV_ENDPOINT,
)
from clusterrun.sources.settings import Settings, find, settings_from_exports, value_of
from clusterrun.sources.world_shape import Shape

USUAL_PORT = 29500
"""The port at which several nodes meet if none is set: torchrun's."""


class Meeting(Struct, frozen=True):
    """Where this job's agents, and later its workers, find each other."""

    master_addr: Fact[str | None]
    master_port: Fact[int | None]
    rdzv_endpoint: Fact[str | None] = Fact(None, "default")
    port_candidates: Fact[tuple[int, ...]] = Fact((), "default")


def settle_meeting(
    sources: Sequence[Settings], environ: Mapping[str, str], shape: Shape, line: CommandLine
) -> Meeting:
    """Return where to meet; with a single agent, nothing needs to be set."""
    endpoint = value_of(RDZV_ENDPOINT, sources)
    if shape.agents == 1:
        address = value_of(MASTER_ADDR, sources, value_of(LOCAL_ADDR, sources))
        return Meeting(address, value_of(MASTER_PORT, sources), endpoint)
    if endpoint.value is not None:
        return _at_endpoint(endpoint, sources)
    # Exports count only here: scripts for workers often export the very port of --rdzv-endpoint.
    ignored = shape.place.ignored_exports if shape.place else ()
    if shape.first_host.value is not None and find(MASTER_ADDR, sources) is None:
        # A list of hosts is made for this job, an export for any launcher.
        ignored = (*ignored, "MASTER_ADDR")
    return _at_address((*sources, settings_from_exports(environ, ignored)), shape, line)


def _at_endpoint(endpoint: Fact[str | None], sources: Sequence[Settings]) -> Meeting:
    port = value_of(MASTER_PORT, sources)
    taken = Endpoint.parse(endpoint.value or "").port
    if taken == 0:
        raise _unknown_port(endpoint.origin)
    if taken is not None and port.value == taken:
        raise UsageError(
            f"{endpoint.origin} and {port.origin} both use port {taken}",
            f"leave {port.origin} out: a free port is chosen for the workers",
        )
    return Meeting(value_of(MASTER_ADDR, sources), port, endpoint)


def _at_address(sources: Sequence[Settings], shape: Shape, line: CommandLine) -> Meeting:
    default = shape.first_host
    if default.value is None and shape.place:
        default = shape.place.master_addr
    address = value_of(MASTER_ADDR, sources, default)
    if address.value is None:
        raise _no_address(shape, line)
    is_port_set = any(MASTER_PORT.name in source for source in sources)
    if shape.place and shape.place.port_candidates.value and not is_port_set:
        return Meeting(address, Fact(None, "default"), port_candidates=shape.place.port_candidates)
    port = value_of(MASTER_PORT, sources, Fact(USUAL_PORT, "default"))
    if port.value is None:
        raise _unknown_port(port.origin)
    return Meeting(address, port)


def _unknown_port(origin: str) -> UsageError:
    return UsageError(
        f"{origin}: port 0 is chosen by each node, but all nodes must meet at one port",
        "give a number from 1 to 65535",
    )


def _no_address(shape: Shape, line: CommandLine) -> UsageError:
    nnodes = f"nnodes is {shape.nnodes}"
    if shape.node_rank.value is not None:
        return UsageError(
            f"{nnodes}, but the address of node 0 is not set",
            f"give its host name:\n  {line.line('--master-addr', 'HOST')}",
        )
    first, second = (line.line("--node-rank", rank, "--master-addr", "HOST") for rank in "01")
    others = "node 1" if shape.nnodes.value == 2 else f"nodes 1 to {shape.nnodes.value - 1}"
    return UsageError(
        f"{nnodes}, but the rank of this node and the address of node 0 are not set",
        f"on node 0, HOST:\n  {first}\non {others}:\n  {second}",
    )
