"""What keeps a node from reaching node 0, in words. Pure."""

from collections.abc import Mapping
from typing import assert_never

from msgspec import Struct

from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.facts import Fact
from clusterrun.errors import RendezvousError
from clusterrun.rendezvous.joining.settings import RendezvousSettings
from clusterrun.rendezvous.names.addresses import Address
from clusterrun.rendezvous.wire.handshake import (
    VERSION,
    Fault,
    HandshakeFailed,
)

NOT_CLUSTERRUN = "what answers there is not clusterrun"
HUNG_UP = "node 0 hung up"

_SAME_VERSION = "Install the same version of clusterrun on all nodes."
_SAME_PROOF = (
    "Give all nodes the same CLUSTERRUN_TOKEN or --token-file.\n"
    "If another job meets there, give each job its own --master-port."
)


class Obstacle(Struct, frozen=True):
    """How far a node has come on its way to node 0."""

    addresses: tuple[Address, ...]
    """Those of node 0's name; () if there are none yet."""
    name_trouble: str
    """Why there are none."""
    troubles: Mapping[tuple[Address, int], str]
    """What is wrong with each address and port."""


def not_reached_yet(settings: RendezvousSettings, obstacle: Obstacle, spent: str) -> str:
    """Return the notice of a node that goes on trying; ``spent`` as in "30 s of 600 s"."""
    if not obstacle.addresses:
        why = f"{settings.host.value} does not resolve yet: {obstacle.name_trouble}"
    else:
        where = f"node 0 can't be reached at {settings.place} yet"
        why = f"{where}: {_troubles(settings, obstacle)}"
    exports = f"; {settings.exports}" if settings.exports else ""
    return f"{why} ({spent}){exports}"


def not_reached(
    settings: RendezvousSettings, obstacle: Obstacle, rank: int | None
) -> RendezvousError:
    """Return the error of a node that has tried long enough; ``rank`` is its own, if it has one."""
    waited = f"for {settings.timeout:g} s"
    if not obstacle.addresses:
        return RendezvousError(
            f"{settings.host} did not resolve on this node {waited}: {obstacle.name_trouble}",
            _if_alone(settings) + "Give a name that all nodes know, or node 0's IP address.",
        )
    place = Fact(settings.place, settings.host.origin)
    return RendezvousError(
        f"node 0 could not be reached at {place} {waited}: {_troubles(settings, obstacle)}",
        _if_alone(settings) + _hint(settings, obstacle, rank),
    )


def _if_alone(settings: RendezvousSettings) -> str:
    return f"If this is one node: {settings.exports}.\n" if settings.exports else ""


def silent(settings: RendezvousSettings) -> RendezvousError:
    """Return the error of a node that was let in, and then heard nothing any more."""
    return RendezvousError(
        f"node 0 at {settings.place} says neither that all nodes are there nor not"
    )


def _troubles(settings: RendezvousSettings, obstacle: Obstacle) -> str:
    if not obstacle.troubles:
        return "no answer yet"
    one_port = len(settings.ports.value) == 1
    return ", ".join(
        trouble
        if one_port and address.text == settings.host.value
        else f"{_where(address, None if one_port else port)}: {trouble}"
        for (address, port), trouble in obstacle.troubles.items()
    )


def _where(address: Address, port: int | None) -> str:
    where = str(Endpoint(address.text, port))
    return f"{where} (this machine itself)" if address.is_loopback else where


def _hint(settings: RendezvousSettings, obstacle: Obstacle, rank: int | None) -> str:
    host, origin = settings.host.value, settings.host.origin
    if all(address.is_loopback for address in obstacle.addresses):
        return (
            f"{host} is {obstacle.addresses[0].text} on this node, which is not node 0:\n"
            f"correct /etc/hosts, or give node 0's IP address with {origin}."
        )
    if NOT_CLUSTERRUN in obstacle.troubles.values():
        return (
            "Another program listens there, or the workers of a job that has all its nodes:\n"
            "is this node one too many?"
        )
    which = "which has that address" if rank is None else "--node-rank 0"
    return (
        f"Start the same command on node 0, {which}: it may not have started,\n"
        "a firewall may keep its port from this node, or its job has all its nodes already."
    )


def fault_of_coordinator(place: str, failure: HandshakeFailed) -> RendezvousError | None:
    """Return the error of a node that was answered by one not to talk to; None: no clusterrun."""
    match failure.fault:
        case Fault.NO_CLUSTERRUN:
            return None
        case Fault.OTHER_VERSION:
            text = f"{place} speaks version {failure.version} of clusterrun's protocol"
            return RendezvousError(f"{text}, this node version {VERSION}", _SAME_VERSION)
        case Fault.HAS_A_TOKEN:
            text = f"the job at {place} has a token, and this node has none"
            return RendezvousError(text, _SAME_PROOF)
        case Fault.HAS_NO_TOKEN:
            text = f"the job at {place} has no token, and this node has one"
            return RendezvousError(text, _SAME_PROOF)
        case Fault.WRONG_TOKEN:
            text = f"the job at {place} has another token than this node"
            return RendezvousError(text, _SAME_PROOF)
        case _:
            assert_never(failure.fault)
