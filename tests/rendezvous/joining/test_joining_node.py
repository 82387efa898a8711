"""What a node says of itself travels, whatever it is."""

from clusterrun.rendezvous.joining.joining_node import hello_of
from clusterrun.rendezvous.wire.frames import (
    FROM_MEMBERS,
    LONGEST_HELLO,
    framed,
)

from tests.rendezvous.nodes import introduction


def test_the_number_of_nodes_is_what_all_must_agree_on() -> None:
    """Nobody can forget it."""
    said = hello_of(introduction(1, must={"max_restarts": "3"}), "1:4")

    assert said.must == {"nnodes": "1:4", "max_restarts": "3"}


def test_every_agent_has_an_identity_of_its_own() -> None:
    """Two on one machine, too."""
    identities = {hello_of(introduction(1), "2").identity for _ in range(100)}

    assert len(identities) == 100


def test_long_values_stay_different() -> None:
    """Though they travel shortened."""
    one, other = (
        hello_of(introduction(1, should={"script": "x" * 1_000_000 + end}), "2")
        for end in ("0", "1")
    )

    assert one.should != other.should
    assert len(framed(one)) < LONGEST_HELLO


def test_a_path_that_is_no_text_travels_all_the_same() -> None:
    """It is bytes, and others stay different from it."""
    said = [
        hello_of(introduction(1, should={"script": text}), "2") for text in ("\udcff", "\udcfe")
    ]
    heard = [next(FROM_MEMBERS.take(bytearray(framed(each)))) for each in said]

    assert heard == said
    assert said[0].should != said[1].should
