"""What a node says of itself to whoever answers at node 0's address."""

import re

import pytest

from launcher.rendezvous.candidate import hello_of
from launcher.rendezvous.meeting import introduction_of
from launcher.rendezvous.wire import Hello, framed
from tests.described import describe

TWO = {"nnodes": "2", "master_addr": "n0"}


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
