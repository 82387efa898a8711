"""What a node says of itself to whoever answers at node 0's address, and where nodes meet."""

import re
from collections.abc import Mapping

import pytest
from clusterrun.coordination.messages import (
    Hello,
)
from clusterrun.rendezvous.joining.introductions import introduction_of, settings_of
from clusterrun.rendezvous.joining.joining_node import hello_of
from clusterrun.rendezvous.wire.frames import (
    framed,
)
from clusterrun.sources.settings import Flags

from tests.described import describe

TWO = {"nnodes": "2", "master_addr": "n0"}

IGNORED = "are set in the environment: --cluster none ignores them"
TRIPLE = {"WORLD_SIZE": "4", "RANK": "0", "MASTER_ADDR": "localhost"}
OF_NODES = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "n0"}


def hello_of_script(*arguments: str) -> Hello:
    """Return what a node says that runs ``true`` with these arguments."""
    job = describe("true", *arguments, flags=TWO | {"no_python": True}).job
    return hello_of(introduction_of(job, "n1", 1, {}), "2")


def test_the_scripts_arguments_do_not_travel() -> None:
    """A secret may be among them."""
    said = hello_of_script("--api-key", "S3cretS3cret")

    assert b"S3cret" not in framed(said)
    assert re.fullmatch("[0-9a-f]{8}", said.should["arguments"])


@pytest.mark.parametrize(
    "other", [(), ("--lr", "2"), ("--lr 1",), ("1", "--lr"), ("--lr", "1", ""), ("--lr", "\udcff")]
)
def test_other_arguments_have_another_digest(other: tuple[str, ...]) -> None:
    """Also where they would look the same in one line, or are no text."""
    own = hello_of_script("--lr", "1").should

    assert hello_of_script("--lr", "1").should == own
    assert hello_of_script(*other).should["arguments"] != own["arguments"]


@pytest.mark.parametrize(
    ("environ", "flags", "told"),
    [
        (TRIPLE, {}, f"WORLD_SIZE, RANK, MASTER_ADDR {IGNORED}"),
        (OF_NODES, {}, f"NNODES, NODE_RANK, MASTER_ADDR {IGNORED}"),
        (OF_NODES, {"master_addr": "n1"}, f"NNODES, NODE_RANK {IGNORED}"),
        (TRIPLE, {"nnodes": "4"}, ""),
        (TRIPLE, {"nnodes": "2", "node_rank": "1"}, ""),
        ({"PET_NNODES": "2", "MASTER_ADDR": "n0"}, {}, ""),
    ],
)
def test_variables_that_may_be_left_over(
    environ: Mapping[str, str], flags: Flags, told: str
) -> None:
    """They are named where nothing but they says that there are other nodes."""
    given: Flags = {"no_python": True, **flags}

    described = describe("true", flags=given, environ=environ)

    assert settings_of(described.job).exports == told
