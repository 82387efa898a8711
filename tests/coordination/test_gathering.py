"""Gathering: which nodes are admitted, which are refused, and what ends the job for all of them."""

from typing import Any

import pytest

from tests.coordination.door import (
    FROM_COORDINATOR,
    OWN,
    HelloReceived,
    JobPhase,
    Notice,
    PrintOnNodeZero,
    Refusal,
    Send,
    StopListening,
    WorldFormed,
    framed,
)
from tests.rendezvous.nodes import hello, opened_job
from tests.rendezvous.replay import Replay


def test_the_world_begins_when_the_last_node_joins() -> None:
    """Not earlier, and without further delay."""
    job = Replay(opened_job(3))
    job.joins(1)
    before = dict(job.worlds)
    job.joins(2)

    assert before == {}
    assert {number: world.node_rank for number, world in job.worlds.items()} == {0: 0, 1: 1, 2: 2}
    assert job.state.phase is JobPhase.RUNNING


def test_the_port_is_closed_before_a_node_can_start_a_worker() -> None:
    """A worker's store listens on the same port."""
    job = Replay(opened_job(2))

    job.joins(1)

    assert isinstance(job.replies[0], StopListening)
    assert all(isinstance(reply, Send) for reply in job.replies[1:])


def test_an_endpoint_of_the_coordinators_own_stays_open() -> None:
    """With --rdzv-endpoint, the port is the coordinator's for the whole job."""
    job = Replay(opened_job(2, keeps_joining_port=True))

    job.joins(1)

    assert not job.port_is_closed
    assert len(job.worlds) == 2


def test_a_job_of_one_node_does_not_wait() -> None:
    """The world is complete from the start."""
    job = Replay(opened_job(1))

    job.waits(0.0)

    assert job.worlds.keys() == {OWN}


def test_all_nodes_receive_the_host_of_node_zero() -> None:
    """It is for the notice if node 0 is lost."""
    job = Replay(opened_job(2, host="head"))

    job.joins(1)

    (message,) = job.sent_to(1)
    assert isinstance(message, WorldFormed)
    assert message.host == "head"


CONTRADICTIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"must": {"nnodes": "3"}}, "nnodes is 2 on n0, 3 on n1"),
    (
        {"must": {"nnodes": "2", "max_restarts": "3"}},
        {"must": {"nnodes": "2", "max_restarts": "0"}},
        "max_restarts is 3 on n0, 0 on n1",
    ),
    ({}, {"must": {}}, "nnodes is 2 on n0, not set on n1"),
    (
        {},
        {"must": {"nnodes": "3"}, "host": "n0"},
        "nnodes is 2 on n0 (pid 10), 3 on n0 (pid 11)",
    ),
    (
        {"rank": 0},
        {"rank": 0},
        "two nodes have node rank 0: n0 (pid 10) and n1 (pid 11)",
    ),
    (
        {},
        {"rank": 0},
        "n1 (pid 11) has node rank 0, but n0:29500 is an address of n0 (pid 10)",
    ),
    ({}, {"rank": 2}, "n1 (pid 11) has node rank 2, but the ranks of 2 nodes are 0-1"),
]
"""The fields of node 0's hello, those of node 1's, and the resulting message."""


@pytest.mark.parametrize(("own", "theirs", "text"), CONTRADICTIONS)
def test_only_the_contradicting_node_is_refused(
    own: dict[str, Any], theirs: dict[str, Any], text: str
) -> None:
    """With both hosts and both values; the job still waits, and node 0 prints the reason."""
    job = Replay(opened_job(2, **own))
    job.joins(1, **theirs)
    before = job.state.phase
    job.joins(2, should=own.get("should", {}), must=job.state.own_hello.must)

    assert {number: refused.text for number, refused in job.refusals.items()} == {1: text}
    assert job.refusals[1].refusal is Refusal.GIVE_UP
    assert job.disconnected == [1]
    host = theirs.get("host", "n1")
    assert job.notices == [f"refused {host} (pid 11) at 10.0.0.{host[1:]}: {text}"]
    assert before is JobPhase.GATHERING
    assert job.worlds.keys() == {0, 2}


@pytest.mark.parametrize(("own", "theirs", "text"), CONTRADICTIONS)
def test_a_contradiction_among_holders_of_the_token_ends_it_on_every_node(
    own: dict[str, Any], theirs: dict[str, Any], text: str
) -> None:
    """It is a mistake in this job, and waiting would not help."""
    job = Replay(opened_job(2, has_token=True, **own))

    job.joins(1, **theirs)

    assert {number: refused.text for number, refused in job.refusals.items()} == {0: text, 1: text}
    assert {refused.refusal for refused in job.refusals.values()} == {Refusal.GIVE_UP}
    assert job.disconnected == [1]
    assert job.state.phase is JobPhase.OVER


def test_two_nodes_with_one_rank() -> None:
    """With a token the one that joined first receives the error, too."""
    job = Replay(opened_job(4, has_token=True))
    job.joins(1, rank=1, host="hostA", pid=12)
    job.joins(2, rank=2)
    job.joins(3, rank=1, host="hostB", pid=34)

    text = "two nodes have node rank 1: hostA (pid 12) and hostB (pid 34)"
    assert {number: refused.text for number, refused in job.refusals.items()} == dict.fromkeys(
        (0, 1, 2, 3), text
    )


@pytest.mark.parametrize("has_token", [True, False])
def test_a_node_too_many(*, has_token: bool) -> None:
    """Three join at once and nnodes is 2: without a token, the first two begin."""
    job = Replay(opened_job(2, has_token=has_token))
    job.calls()
    job.calls()
    job.introduces(1, hello(1))
    job.introduces(2, hello(2))
    job.waits(0.0)

    text = "nnodes is 2, but 3 nodes have called: n0 (pid 10), n1 (pid 11) and n2 (pid 12)"
    assert {number: refused.text for number, refused in job.refusals.items()} == dict.fromkeys(
        (0, 1, 2) if has_token else (2,), text
    )
    assert job.worlds.keys() == (set() if has_token else {0, 1})


def test_a_silent_caller_delays_the_world_only_for_a_moment() -> None:
    """It may be one node too many, or a port scanner."""
    job = Replay(opened_job(2))
    job.calls()
    job.joins(1)
    at_once = dict(job.worlds)
    job.waits(0.2)

    assert at_once == {}
    assert len(job.worlds) == 2


def test_repeated_callers_do_not_delay_it_any_longer() -> None:
    """The delay counts from the last node that joined."""
    job = Replay(opened_job(2))
    job.calls()
    job.joins(1)
    job.waits(0.15)
    job.calls()
    job.waits(0.06)

    assert len(job.worlds) == 2


def test_the_world_begins_when_the_last_caller_without_a_hello_disconnects() -> None:
    """Then no caller could be another node."""
    job = Replay(opened_job(2))
    job.calls()
    job.joins(1)
    job.caller_leaves()

    assert len(job.worlds) == 2


def test_a_node_that_joins_later_is_refused() -> None:
    """The job continues."""
    job = Replay(opened_job(2, keeps_joining_port=True))
    job.joins(1)
    job.joins(2)

    assert job.refusals[2].text == "the job at n0:29500 has all its 2 nodes: n0, n1"
    assert job.refusals.keys() == {2}
    assert job.notices == ["refused n2 (pid 12) at 10.0.0.2: all 2 nodes have joined"]
    assert job.state.phase is JobPhase.RUNNING


@pytest.mark.parametrize(
    ("own", "theirs", "text", "noted"),
    [
        (
            {"run_id": "mine"},
            {"run_id": "yours"},
            (
                'n0:29500 belongs to another job: its run id is "mine",'
                ' that of n1 (pid 11) is "yours"'
            ),
            'it belongs to another job, run id "yours"',
        ),
        (
            {},
            {"user_id": 1001},
            "n0:29500 belongs to a job of user 1000, n1 (pid 11) runs as user 1001",
            "it runs as user 1001, this job as user 1000",
        ),
    ],
)
def test_a_node_of_another_job_is_refused_alone(
    own: dict[str, Any], theirs: dict[str, Any], text: str, noted: str
) -> None:
    """The job waits for its own nodes as before, and prints one notice."""
    job = Replay(opened_job(2, **own))
    job.joins(1, **theirs)
    job.joins(1, **theirs)
    job.joins(2)

    assert job.refusals[1].text == text
    assert job.refusals[1].refusal is Refusal.TRY_ELSEWHERE
    assert job.notices == [f"refused n1 (pid 11) at 10.0.0.1: {noted}"]
    assert job.worlds.keys() == {0, 2}


def test_without_a_run_id_a_node_takes_that_of_node_zero() -> None:
    """Notices are printed on node 0 only, or nowhere."""
    job = Replay(opened_job(2, run_id="mine"))

    job.joins(1)

    assert {world.run_id for world in job.worlds.values()} == {"mine"}


def test_node_zero_that_reaches_itself_prints_nothing() -> None:
    """Through the address of a service."""
    job = Replay(opened_job(2))
    job.joins(5, identity="agent 0", rank=0)
    job.joins(1)

    assert job.refusals[5].refusal is Refusal.IT_IS_YOU
    assert job.notices == []
    assert job.worlds.keys() == {0, 1}


@pytest.mark.parametrize("rank", [None, 1])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_an_agent_that_calls_twice_is_one_node(order: tuple[int, int], rank: int | None) -> None:
    """Its first hello may be delayed, and arrive before or after its second call."""
    job = Replay(opened_job(3))
    job.newest = 2
    for number in order:
        job.calls()
        job.introduces(number, hello(1, 3, rank=rank))
    job.waits(1.0)
    there = dict(job.worlds)
    job.joins(3)

    assert there == {}
    assert job.refusals == {}
    assert job.disconnected == [1]
    assert {number: world.node_rank for number, world in job.worlds.items()} == {0: 0, 2: 1, 3: 2}


@pytest.mark.parametrize("has_token", [True, False])
@pytest.mark.parametrize("old_one_first", [True, False])
@pytest.mark.parametrize("changes", [{"rank": 1}, {"rank": 1, "must": {"nnodes": "4"}}])
def test_a_leftover_of_an_earlier_start_is_refused_alone(
    changes: dict[str, Any], *, old_one_first: bool, has_token: bool
) -> None:
    """It never reached the node 0 of that start; the job continues with the current start."""
    job = Replay(opened_job(3, has_token=has_token))
    job.now = 2.0
    old = {"host": "n1", "waited": 40.0, "rank": 1} | ({} if old_one_first else changes)
    new = {"host": "n1", "waited": 3.0, "rank": 1}
    for number, words in ((1, old), (2, new)) if old_one_first else ((2, new), (1, old)):
        job.newest = 2
        job.calls()
        job.introduces(number, hello(number, 3, **words))
    job.joins(3, rank=2)

    assert {number: refused.text for number, refused in job.refusals.items()} == {
        1: "another clusterrun, started later on this host, has this node's place in the job"
    }
    assert job.disconnected == [1]
    assert job.worlds.keys() == {0, 2, 3}
    (notice,) = job.notices
    assert notice.endswith("another clusterrun, started later on its host, has its place")


def test_a_leftover_without_a_rank_is_not_one_node_too_many() -> None:
    """A silent caller holds the complete job up for a moment."""
    job = Replay(opened_job(3))
    job.now = 2.0
    job.calls()
    for number, host, waited in ((1, "n1", 40.0), (2, "n2", 1.0), (3, "n1", 1.0)):
        job.joins(number, host=host, waited=waited)
    job.waits(1.0)

    assert job.refusals.keys() == {1}
    assert job.worlds.keys() == {0, 2, 3}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"waited": 4.0}, {"waited": 1.0}, id="of one start"),
        pytest.param({"waited": 1.5}, {"waited": 1.0}, id="none before node 0"),
        pytest.param({"waited": 40.0}, {"waited": 1.0, "host": "n2"}, id="on two hosts"),
    ],
)
def test_two_of_one_start_contradict_each_other(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Among holders of the token a mistake ends the job at once."""
    job = Replay(opened_job(3, has_token=True))
    job.now = 2.0
    job.joins(1, **{"rank": 1, "host": "n1"} | one)
    job.joins(2, **{"rank": 1, "host": "n1"} | other)

    assert job.refusals.keys() == {0, 1, 2}


def test_a_difference_is_printed_once() -> None:
    """The first difference, for any number of nodes that differ."""
    job = Replay(opened_job(3, should={"torch": "2.13", "python": "3.11"}))
    job.joins(1, should={"torch": "2.12", "python": "3.10"})
    job.joins(2, should={"torch": "2.11", "python": "3.10"})

    assert job.notices == ["warning: not the same torch on all nodes: 2.13 on n0, 2.12 on n1"]
    assert len(job.worlds) == 3


def test_a_node_cannot_replace_one_of_another_host() -> None:
    """Otherwise, knowing a host's name and rank would suffice to take its place."""
    job = Replay(opened_job(3))
    job.now = 2.0
    job.joins(1, rank=1, waited=40.0)
    job.newest = 2
    job.calls()
    job.happens(HelloReceived(2, "10.0.0.66", hello(2, 3, host="n1", rank=1), job.now))
    job.joins(3, rank=2)

    assert job.refusals.keys() == {2}
    assert job.worlds.keys() == {0, 1, 3}


def test_a_node_that_leaves_is_awaited_again() -> None:
    """Its scheduler may start it again."""
    job = Replay(opened_job(2))
    job.calls()
    job.joins(1, rank=1)
    job.goes(1)
    job.caller_leaves()
    without = dict(job.worlds)
    job.joins(2, rank=1)

    assert without == {}
    assert job.notices == ["n1 (pid 11) has disconnected"]
    assert {number: world.node_rank for number, world in job.worlds.items()} == {0: 0, 2: 1}


def test_waiting_is_visible() -> None:
    """First after 5 s, then each 30 s, on all nodes that have joined."""
    job = Replay(opened_job(4, hosts=("n0", "n1", "n2", "n3"), rank=0))
    job.joins(1, rank=1)
    job.waits(70)

    text = "2 of 4 nodes have joined: n0, n1; waiting for n2, n3 ({} s of 600 s)"
    expected = [Notice(text.format(seconds)) for seconds in (5, 35, 65)]
    assert job.sent_to(0) == job.sent_to(1) == expected


def test_in_a_large_job_only_node_zero_prints_the_missing_nodes() -> None:
    """A thousand equal lines would not help."""
    job = Replay(opened_job(9))
    job.joins(1)
    job.waits(6)

    assert (len(job.sent_to(0)), job.sent_to(1)) == (1, [])


def test_a_node_that_never_joins_ends_the_job_for_the_others() -> None:
    """Named, if the scheduler lists the hosts."""
    job = Replay(opened_job(3, hosts=("n0", "n1", "n2"), rank=0, timeout=60.0))
    job.joins(1, rank=1)
    job.caller_leaves("10.0.0.9: it has another token")
    job.waits(60)

    text = "2 of 3 nodes joined within 60 s: n0, n1; missing: n2"
    assert {number: refused.text for number, refused in job.refusals.items()} == {0: text, 1: text}
    assert "Refused meanwhile: 10.0.0.9: it has another token." in job.refusals[1].hint


def test_the_longest_refusal_fits_into_its_message() -> None:
    """With the longest names of hosts."""
    job = Replay(opened_job(400, hosts=tuple(f"{number:0>250}" for number in range(400))))
    for number in range(1, 300):
        job.joins(number, host=f"{number:1>250}", user_id=7 if number < 50 else 1000)
    job.waits(600)

    refused = job.refusals[299]
    assert list(FROM_COORDINATOR.take(bytearray(framed(refused)))) == [refused]


def test_a_node_that_joins_after_a_contradiction_receives_it() -> None:
    """Nodes that start at about the same time all end within a second."""
    job = Replay(opened_job(3, has_token=True))
    job.joins(1, must={"nnodes": "2"})
    informed = job.state.informed
    job.joins(2)

    assert job.refusals[2] == job.refusals[1]
    assert (informed, job.state.informed) == (2, 3)


def test_refused_callers_cause_only_a_few_lines() -> None:
    """For any number of callers."""
    job = Replay(opened_job(2))
    for number in range(100):
        job.calls()
        job.caller_leaves(f"10.0.1.{number}: it does not speak clusterrun's protocol")

    assert len([reply for reply in job.replies if isinstance(reply, PrintOnNodeZero)]) == 16


def test_a_report_before_the_first_attempt_is_a_protocol_error() -> None:
    """Its sender is disconnected."""
    job = Replay(opened_job(3))
    job.joins(1)

    job.is_done(1)

    assert job.disconnected == [1]


def test_a_silent_node_is_awaited_again() -> None:
    """Its host may have lost power; another one may take its place."""
    job = Replay(opened_job(2))
    job.calls()
    job.joins(1, rank=1)
    job.is_silent(1)
    job.caller_leaves()
    job.joins(2, rank=1)

    assert job.notices == ["n1 (pid 11) has been silent for 15 s"]
    assert job.disconnected == [1]
    assert job.worlds[2].size == 2
