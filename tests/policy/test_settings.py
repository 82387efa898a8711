"""Where the nodes of a job rendezvous."""

from collections.abc import Mapping

import pytest
from clusterrun.policy.settings import rendezvous_settings

from tests.command_lines import Flags
from tests.described import describe
from tests.plans import job

IGNORED = "are set in the environment: --cluster none ignores them"
TRIPLE = {"WORLD_SIZE": "4", "RANK": "0", "MASTER_ADDR": "localhost"}
OF_NODES = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "n0"}


@pytest.mark.parametrize(
    ("environ", "flags", "exports"),
    [
        (TRIPLE, {}, f"WORLD_SIZE, RANK, MASTER_ADDR {IGNORED}"),
        (OF_NODES, {}, f"NNODES, NODE_RANK, MASTER_ADDR {IGNORED}"),
        (OF_NODES, {"master_addr": "n1"}, f"NNODES, NODE_RANK {IGNORED}"),
        (TRIPLE, {"nnodes": "4"}, ""),
        (TRIPLE, {"nnodes": "2", "node_rank": "1"}, ""),
        ({"PET_NNODES": "2", "MASTER_ADDR": "n0"}, {}, ""),
    ],
)
def test_leftover_variables_are_named(
    environ: Mapping[str, str], flags: Flags, exports: str
) -> None:
    """If only they set the number of nodes."""
    given: Flags = {"no_python": True, **flags}

    described = describe("true", flags=given, environ=environ)

    assert rendezvous_settings(described.job).exports == exports


@pytest.mark.parametrize(("endpoint", "port"), [("n0", 29400), ("n0:1234", 1234)])
def test_rendezvous_endpoint_is_kept_for_nodes(endpoint: str, port: int) -> None:
    """Workers get a port of their own."""
    flags: Flags = {"no_python": True, "nnodes": "2", "rdzv_endpoint": endpoint}

    settings = rendezvous_settings(describe("true", flags=flags).job)

    assert (settings.host.value, settings.ports.value) == ("n0", (port,))
    assert settings.keeps_rendezvous_port
    assert settings.workers_port.value is None


def test_ports_derived_from_scheduler() -> None:
    """All nodes know them, because they are computed from the numbers of job and step."""
    spec = job(nnodes=2, node_rank=0, master_addr="a", port_candidates=(20001, 20002))

    assert rendezvous_settings(spec).ports.value == (20001, 20002)


@pytest.mark.parametrize(
    ("place", "at_endpoint"),
    [
        ({"rdzv_endpoint": "n0:1234", "rdzv_backend": "static", "node_rank": "0"}, True),
        ({"rdzv_endpoint": "n0:1234", "rdzv_backend": "c10d"}, True),
        ({"master_addr": "n0"}, False),
    ],
    ids=["static", "c10d", "address"],
)
def test_origin_of_address_is_known_for_hints(place: Flags, at_endpoint: bool) -> None:
    """They name --rdzv-endpoint, even where its backend takes it for torchrun's --master-addr."""
    flags: Flags = {"no_python": True, "nnodes": "2", **place}

    assert describe("true", flags=flags).job.given.at_endpoint is at_endpoint


def test_typed_address_replaces_inherited_endpoint() -> None:
    """With static, only the endpoint's port is left, so hints name --master-addr."""
    address: Flags = {"rdzv_backend": "static", "master_addr": "n5"}
    flags: Flags = {"no_python": True, "nnodes": "2", **address}

    found = describe("true", flags=flags, environ={"PET_RDZV_ENDPOINT": "n0:1234"}).job

    assert (found.rendezvous.master_addr, found.given.at_endpoint) == ("n5", False)
