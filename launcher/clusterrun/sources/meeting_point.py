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
"""Where several nodes meet and nothing says at which port: torchrun's."""


class Meeting(Struct, frozen=True):
    """Where this job's agents, and later its workers, find each other."""

    master_addr: Fact[str | None]
    master_port: Fact[int | None]
    port_candidates: Fact[tuple[int, ...]]
    rdzv_endpoint: Fact[str | None]


def settle_meeting(
    sources: Sequence[Settings], environ: Mapping[str, str], shape: Shape, typed: CommandLine
) -> Meeting:
    """Return where to meet; where there is but one agent, nobody has to.

    Raises:
        UsageError: several agents would not find each other.

    """
    endpoint = value_of(RDZV_ENDPOINT, sources)
    if shape.agents == 1:
        return Meeting(
            value_of(MASTER_ADDR, sources, value_of(LOCAL_ADDR, sources)),
            value_of(MASTER_PORT, sources),
            Fact((), "default"),
            endpoint,
        )
    if endpoint.value is not None:
        return _at_endpoint(endpoint, sources)
    # Scripts that export them for their workers name the same port in --rdzv-endpoint, where it
    # would be taken: so only here.
    own = shape.place.ignored_exports if shape.place else ()
    if shape.first_host.value is not None and find(MASTER_ADDR, sources) is None:
        # Who lists hosts for this job says where it meets; an export is for any launcher.
        own = (*own, "MASTER_ADDR")
    return _at_address((*sources, settings_from_exports(environ, own)), shape, typed)


def _at_endpoint(endpoint: Fact[str | None], sources: Sequence[Settings]) -> Meeting:
    port = value_of(MASTER_PORT, sources)
    taken = Endpoint.parse(endpoint.value or "").port
    if taken == 0:
        raise UsageError(
            f"{endpoint.origin}: no node would know at which port to meet",
            "give a number from 1 to 65535",
        )
    if taken is not None and port.value == taken:
        raise UsageError(
            f"rdzv_endpoint is {endpoint} and master_port {port}: one port for two purposes",
            f"leave {port.origin} out: a free port is chosen for the workers",
        )
    return Meeting(value_of(MASTER_ADDR, sources), port, Fact((), "default"), endpoint)


def _at_address(sources: Sequence[Settings], shape: Shape, typed: CommandLine) -> Meeting:
    otherwise = shape.first_host
    if otherwise.value is None and shape.place:
        otherwise = shape.place.master_addr
    address = value_of(MASTER_ADDR, sources, otherwise)
    if address.value is None:
        raise _nowhere(shape, typed)
    port, candidates = _ports(sources, shape)
    return Meeting(address, port, candidates, Fact(None, "default"))


def _ports(
    sources: Sequence[Settings], shape: Shape
) -> tuple[Fact[int | None], Fact[tuple[int, ...]]]:
    candidates: Fact[tuple[int, ...]] = Fact((), "default")
    said = any(MASTER_PORT.name in it for it in sources)
    if not said and shape.place and shape.place.port_candidates.value:
        return Fact(None, "default"), shape.place.port_candidates
    port = value_of(MASTER_PORT, sources, Fact(USUAL_PORT, "default"))
    if port.value is None:
        raise UsageError(
            f"{port.origin}: no node would know at which port to meet",
            "give a number from 1 to 65535",
        )
    return port, candidates


def _nowhere(shape: Shape, typed: CommandLine) -> UsageError:
    several = f"nnodes is {shape.nnodes}"
    if shape.node_rank.value is not None:
        return UsageError(
            f"{several}, but nothing says where rank 0 is",
            f"give the name of its node:\n  {typed.line('--master-addr', 'HOST')}",
        )
    first, second = (typed.line("--node-rank", rank, "--master-addr", "HOST") for rank in "01")
    others = (
        "the other" if shape.nnodes.value == 2 else f"the others, 1 to {shape.nnodes.value - 1}"
    )
    return UsageError(
        f"{several}, but nothing says which of them this is, or where the first is",
        f"on the first, HOST:\n  {first}\non {others}:\n  {second}",
    )
