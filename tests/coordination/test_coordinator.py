"""Promises of the coordinator, in any order of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordination.door import (
    NEVER,
    OWN,
    Abandoned,
    CallerGone,
    Disconnect,
    Interrupted,
    JobPhase,
    MemberSilent,
    Notice,
    Paused,
    Refused,
    Send,
    Stop,
    StopListening,
    Succeeded,
    Verdict,
    WorldFormed,
    due,
)
from tests.rendezvous.nodes import fate, opened_job
from tests.rendezvous.replay import Replay

NODES = 3

Step = tuple[object, ...]

numbers = st.integers(0, NODES + 2)
codes = st.sampled_from([0, 0, 1, 7])
ages = st.floats(0, 10)
ranks = st.none() | st.integers(0, NODES)
claimed_nodes = st.sampled_from([NODES] * 9 + [NODES + 1])

running = st.one_of(
    st.tuples(st.just("is done"), numbers, codes, ages),
    st.tuples(st.just("fails"), numbers, ages),
    st.tuples(st.just("is ended_externally"), numbers),
    st.tuples(st.just("goes"), st.integers(1, NODES + 2)),
    st.tuples(st.just("waits"), st.floats(0, 100)),
)
gathering = st.one_of(
    st.tuples(st.just("joins"), ranks, claimed_nodes),
    st.tuples(st.just("calls")),
    st.tuples(st.just("hangs up")),
)


def take(job: Replay, step: Step) -> None:
    match step:
        case ("joins", rank, nodes):
            job.joins(job.newest + 1, rank=rank, must={"nnodes": str(nodes)})
        case ("calls",):
            job.calls()
        case ("hangs up",) if job.state.callers:
            job.caller_leaves()
        case ("is done", int(number), int(code), float(age)):
            job.is_done(number, [(fate(number, code), age)])
        case ("fails", int(number), float(age)):
            job.fails(number, fate(number, 1), age)
        case ("is ended_externally", int(number)):
            job.is_ended_externally(number, Interrupted(15))
        case ("goes", int(number)):
            job.goes(number)
        case ("waits", float(seconds)):
            job.waits(seconds)


def replayed(steps: list[Step]) -> Replay:
    """Return a job after these steps."""
    job = Replay(opened_job(NODES))
    for step in steps:
        take(job, step)
    return job


histories = st.lists(gathering | running, max_size=40)
joined_histories = st.lists(running, max_size=30)


def complete() -> Replay:
    """Return a job that all its nodes have joined."""
    job = Replay(opened_job(NODES))
    for number in range(1, NODES):
        job.joins(number)
    return job


@given(histories)
def test_no_world_before_all_nodes_have_joined(steps: list[Step]) -> None:
    """Then one world, of exactly as many nodes as were set, each with its own rank."""
    job = replayed(steps)

    ranks = sorted(world.node_rank for world in job.worlds.values())
    assert ranks in ([], list(range(NODES)))
    assert len([message for _, message in job.sent if isinstance(message, WorldFormed)]) in {
        0,
        NODES,
    }
    assert job.port_is_closed == bool(ranks)


@given(histories)
def test_the_port_closes_before_the_first_world_is_sent(steps: list[Step]) -> None:
    """A worker's store would fail on a busy port."""
    kinds = [
        type(reply.message) if isinstance(reply, Send) else type(reply)
        for reply in replayed(steps).replies
    ]

    if WorldFormed in kinds:
        assert kinds.index(StopListening) < kinds.index(WorldFormed)


@given(histories)
def test_one_verdict_and_one_stop_for_all(steps: list[Step]) -> None:
    """No member receives two."""
    job = replayed(steps)

    for kind in (Verdict, Stop):
        sent = [(to, message) for to, message in job.sent if isinstance(message, kind)]
        assert len({to for to, _ in sent}) == len(sent)
        assert len({str(message) for _, message in sent}) <= 1


@given(joined_histories)
def test_success_needs_every_node(steps: list[Step]) -> None:
    """Success needs a good report of every node, and no other cause."""
    job = complete()
    for step in steps:
        take(job, step)

    if Succeeded() in job.verdicts.values():
        assert job.state.attempt.reports.keys() == job.state.ranks.keys()
        fates = [each for report in job.state.attempt.reports.values() for each in report.fates]
        assert all(each.ending.succeeded for each in fates)
        assert job.stops == {}


@given(joined_histories)
def test_every_history_has_an_end(steps: list[Step]) -> None:
    """When the last node has reported or is lost, all others receive the verdict."""
    job = complete()
    for step in steps:
        take(job, step)
    for number in range(NODES):
        if number not in job.state.lost_before_report:
            job.is_done(number, [(fate(number), 0.0)])

    assert job.state.phase is JobPhase.OVER
    assert (
        job.verdicts.keys()
        == {OWN, 1, 2} - job.state.lost_before_report.keys() - job.state.lost_after_report.keys()
    )
    assert due(job.state) == NEVER


@given(histories)
def test_a_refused_caller_receives_only_the_reason(steps: list[Step]) -> None:
    """The job continues without it, and never refuses a member of a running job."""
    job = replayed(steps)

    for number in job.refusals if job.worlds else ():
        assert {type(message) for message in job.sent_to(number)} == {Refused}
        assert number not in job.state.ranks


@given(histories, st.floats(0, 1000))
def test_gathering_ends_in_time(steps: list[Step], seconds: float) -> None:
    """After the timeout the job has ended or runs."""
    job = replayed(steps)
    job.waits(600.0 + seconds)

    assert job.state.phase is not JobPhase.GATHERING


@given(st.lists(gathering, max_size=20))
def test_node_zero_may_end_while_it_waits(steps: list[Step]) -> None:
    """Nodes that have joined receive the reason."""
    job = replayed(steps)
    waiting = job.state.phase is JobPhase.GATHERING
    members = set(job.state.members.hellos)

    job.happens(Abandoned("n0 (node 0) got SIGINT while it waited for other nodes", 1.0))

    if waiting:
        assert job.refusals.keys() >= members
    assert job.state.phase is not JobPhase.GATHERING


def test_a_disconnected_caller_does_not_affect_a_running_job() -> None:
    """A notice is printed if it broke the protocol."""
    job = complete()
    before = job.state.phase

    job.calls()
    job.happens(CallerGone("10.0.0.9: it does not speak clusterrun's protocol", 1.0))

    assert job.state.phase is before
    assert job.notices == ["refused 10.0.0.9: it does not speak clusterrun's protocol"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_is_paused(number: int) -> None:
    """All others receive one notice; members also learn that node 0's silence means nothing."""
    job = complete()
    for paused in (True, True, False, False):
        job.is_paused(number, paused=paused)

    others = [each for each in range(NODES) if each != number]
    orders = [(to, each) for to, each in job.sent if isinstance(each, Paused)]
    lines = [(to, each.text) for to, each in job.sent if isinstance(each, Notice)]
    name = f"node {number} (n{number})"
    assert lines == [
        (each, f"{name} {how}")
        for how in ("is paused: the job waits until it is continued", "continues")
        for each in others
    ]
    assert orders == [
        (each, Paused(paused))
        for paused in (True, False)
        for each in (others if number == 0 else ())
    ]


def test_messages_after_the_verdict_are_ignored() -> None:
    job = complete()
    for number in range(NODES):
        job.is_done(number)
    count = len(job.sent)

    job.fails(1, fate(1, 1))
    job.goes(2)
    job.is_paused(1)
    job.waits(1000)

    assert len(job.sent) == count


def test_a_silent_connection_that_is_no_member() -> None:
    """It is closed; the job goes on."""
    job = Replay(opened_job(2))

    assert job.happens(MemberSilent(9, 1.0)) == (Disconnect((9,)),)
    assert job.state.phase is JobPhase.GATHERING
