"""A node's ``Hello``: the values that are sent to node 0."""

import re
from collections.abc import Mapping

import pytest
from clusterrun.job.job import Job
from clusterrun.network.channel import FROM_MEMBERS, MAX_HELLO_BYTES
from clusterrun.network.joining_node import MAX_VALUE_CHARACTERS, bounded_value, hello_of
from clusterrun.policy import messages
from msgspec.msgpack import encode
from msgspec.structs import replace

from tests.command_lines import Flags
from tests.described import describe
from tests.network.nodes import hello


def hello_of_script(*arguments: str, **texts: str) -> messages.Hello:
    """Return the hello of a node that runs ``true`` with these arguments; ``texts`` are options."""
    return hello_of(described_job(*arguments, **texts), "n1", 1, "0.2.0", {"torch": "2.13.0"})


def described_job(*arguments: str, **texts: str) -> Job:
    usual: Flags = {"nnodes": "2", "master_addr": "n0", "no_python": True, "max_restarts": "3"}
    return describe("true", *arguments, flags={**usual, **texts}).job


def test_versions_of_clusterrun_must_agree() -> None:
    """Different versions of other packages only cause a warning."""
    sent = hello_of_script()

    assert sent.must["version of clusterrun"] == "0.2.0"
    assert sent.should["torch"] == "2.13.0"


def test_numbers_of_nodes_must_agree() -> None:
    """And so must the options that decide about restarts."""
    sent = hello_of_script(nnodes="1:4")

    assert (sent.must["nnodes"], sent.must["max_restarts"]) == ("1:4", "3")


@pytest.mark.parametrize(("options", "run_id"), [({}, ""), ({"run_id": "mine"}, "mine")])
def test_hello_has_only_a_run_id_that_was_set(options: Mapping[str, str], run_id: str) -> None:
    """Otherwise each node generates one, and these differ."""
    assert hello_of_script(**options).run_id == run_id


@pytest.mark.parametrize(("kept", "sent"), [(3, 3), (messages.MAX_KEPT_ATTEMPTS + 1, 10_000)])
def test_number_of_kept_attempts_is_limited(kept: int, sent: int) -> None:
    """A folder of logs may hold anything."""
    job = replace(described_job(), kept_attempts=kept)

    assert hello_of(job, "n1", 1, "0.2.0", {}).kept_attempts == sent


def test_every_agent_has_its_own_identity() -> None:
    """Even two on one machine."""
    identities = {hello_of_script().identity for _ in range(100)}

    assert len(identities) == 100


def test_script_arguments_are_not_sent() -> None:
    """They may include a secret."""
    sent = hello_of_script("--api-key", "S3cretS3cret")

    assert b"S3cret" not in encode(sent)
    assert re.fullmatch("[0-9a-f]{8}", sent.should["arguments"])


@pytest.mark.parametrize(
    "other", [(), ("--lr", "2"), ("--lr 1",), ("1", "--lr"), ("--lr", "1", ""), ("--lr", "\udcff")]
)
def test_different_arguments_have_different_digests(other: tuple[str, ...]) -> None:
    """Even if they look the same when joined, or are not text."""
    own = hello_of_script("--lr", "1").should

    assert hello_of_script("--lr", "1").should == own
    assert hello_of_script(*other).should["arguments"] != own["arguments"]


def test_cut_values_stay_different() -> None:
    one, other = (
        hello(1, should={"script": bounded_value("x" * 1_000_000 + end)}) for end in ("0", "1")
    )

    assert one.should != other.should
    assert len(encode(one)) < MAX_VALUE_CHARACTERS + 1000 < MAX_HELLO_BYTES


def test_path_that_is_not_utf8_is_sent() -> None:
    """It stays different from others."""
    sent = [hello(1, should={"script": bounded_value(text)}) for text in ("\udcff", "\udcfe")]
    received = [FROM_MEMBERS.decode(encode(each)) for each in sent]

    assert received == sent
    assert sent[0].should != sent[1].should
