"""Rounds of collecting stacks: requests, answers, and the result on node 0."""

from msgspec.structs import replace

from tests.coordination.door import (
    EXITED,
    MOST_MISSING,
    OWN,
    AllStacks,
    Disconnect,
    Hung,
    Idle,
    Interrupted,
    MessageReceived,
    NextAttempt,
    Notice,
    OnHang,
    RankLeft,
    RequestStacks,
    RequestSuspension,
    SendStacks,
    StackGroup,
    Stacks,
    Stop,
    job_notices,
)
from tests.coordination.door import (
    SECONDS_TO_SHOW_STACKS as SECONDS_TO_ANSWER,
)
from tests.rendezvous.nodes import fate
from tests.rendezvous.replay import Replay, running

F, G = "  File f", "  File g"


def asked(job: Replay) -> list[tuple[int, SendStacks]]:
    """Return the requests for stacks."""
    return [(number, message) for number, message in job.sent if isinstance(message, SendStacks)]


def shown(job: Replay) -> list[tuple[int, AllStacks]]:
    """Return the results that were sent."""
    return [(number, message) for number, message in job.sent if isinstance(message, AllStacks)]


def printed(job: Replay) -> list[tuple[int, Notice]]:
    """Return the notices that were sent."""
    return [(number, message) for number, message in job.sent if isinstance(message, Notice)]


def answers(job: Replay, number: int, text: str, *, round_: int = 1) -> None:
    """A node sends the stack of its worker."""
    group = StackGroup((number,), text)
    job.sends_stacks(number, Stacks(job.state.attempt.number, round_, (group,)))


def test_all_nodes_are_asked_and_node_0_receives_the_stacks() -> None:
    """As soon as the last node has answered."""
    job = running(3)
    job.sends_stacks(2, RequestStacks(0))
    for number, text in ((0, F), (2, G)):
        answers(job, number, text)
    before = shown(job)
    answers(job, 1, F)

    assert asked(job) == [(number, SendStacks(0, 1)) for number in range(3)]
    assert printed(job) == [(OWN, Notice(job_notices.stacks_requested("n2")))]
    assert before == []
    assert shown(job) == [(OWN, AllStacks((StackGroup((0, 1), F), StackGroup((2,), G)), ()))]


def test_one_round_at_a_time() -> None:
    """A request during a round gets its result; a later one starts another round."""
    job = running(2)
    job.sends_stacks(0, RequestStacks(0))
    job.sends_stacks(1, RequestStacks(0))
    for number in (0, 1, 1):
        answers(job, number, F)
    job.sends_stacks(0, RequestStacks(0))
    # An answer of the round before is too late.
    answers(job, 0, G)

    assert [message.number for _, message in asked(job)] == [1, 1, 2, 2]
    assert printed(job) == []
    assert len(shown(job)) == 1


def test_nodes_that_do_not_answer_are_named() -> None:
    """At the deadline; at most one screen of them."""
    job = running(MOST_MISSING + 4)
    job.sends_stacks(0, RequestStacks(0))
    answers(job, 0, F)
    job.waits(SECONDS_TO_ANSWER - 0.1)
    before = shown(job)
    job.waits(0.2)

    [(_, gathered)] = shown(job)
    assert before == []
    assert gathered.missing[0] == "node 1 (n1)"
    assert gathered.missing[-1] == "3 more nodes"
    assert len(gathered.missing) == MOST_MISSING + 1


def test_nothing_moves() -> None:
    """Only if it is so on all nodes; and again only after some output."""
    job = running(2)
    job.sends_stacks(0, Idle(0, 60.0))
    assert asked(job) == []
    job.sends_stacks(0, Idle(0, 0.0))
    job.sends_stacks(1, Idle(0, 60.0))
    assert asked(job) == []
    job.sends_stacks(0, Idle(0, 60.0))
    assert asked(job) == [(number, SendStacks(0, 1)) for number in range(2)]
    for number in range(2):
        answers(job, number, F)
    job.waits(1000)
    assert len(asked(job)) == 2

    job.sends_stacks(1, Idle(0, 0.0))
    job.sends_stacks(1, Idle(0, 60.0))
    assert len(asked(job)) == 4


def test_a_node_that_disconnected_after_its_report_is_not_awaited() -> None:
    """A lost node isn't, either."""
    job = running(3)
    job.is_done(1, [(fate(1), 0.0)])
    job.goes(1)
    job.sends_stacks(2, Idle(0, 60.0))
    job.sends_stacks(0, Idle(0, 60.0))
    for number in (0, 2):
        answers(job, number, F)

    assert [number for number, _ in asked(job)] == [0, 2]
    assert shown(job) == [(OWN, AllStacks((StackGroup((0, 2), F),), ()))]


def test_the_next_attempt_starts_without_a_round() -> None:
    """No number is used twice, and messages of the last attempt are ignored."""
    job = running(2, restarts=1)
    job.sends_stacks(0, Idle(0, 60.0))
    job.sends_stacks(0, RequestStacks(0))
    job.is_done(0, [(fate(0, 1), 0.0)])
    job.is_done(1, [(fate(1), 0.0)])
    assert job.state.attempt.number == 1
    job.waits(SECONDS_TO_ANSWER)
    job.sends_stacks(1, Idle(0, 60.0))
    job.sends_stacks(1, Idle(1, 60.0))
    assert len(asked(job)) == 2

    job.sends_stacks(1, RequestStacks(1))
    assert asked(job)[-1] == (1, SendStacks(1, 2))
    assert shown(job) == []


def test_strangers_and_the_end() -> None:
    """A caller that is no member is disconnected; a job that is over sends no request."""
    job = running(2)
    assert job.sends_stacks(9, RequestStacks(0)) == (Disconnect((9,)),)
    assert job.sends_stacks(1, RequestStacks(5)) == (Disconnect((1,)),)

    over = running(2)
    over.is_ended_externally(0, Interrupted(15))
    for number in (0, 1):
        over.is_done(number)
    over.sends_stacks(0, RequestStacks(0))
    assert asked(over) == []


def test_ranks_that_a_node_cannot_have() -> None:
    """It has one worker: with others it is lost; an empty group is ignored."""
    job = running(3)
    job.sends_stacks(0, RequestStacks(0))
    job.sends_stacks(2, Stacks(0, 1, (StackGroup((), F), StackGroup((2,), G))))
    job.sends_stacks(1, Stacks(0, 1, (StackGroup((1, 2), G),)))
    answers(job, 0, F)

    assert job.disconnected == [1]
    assert shown(job) == [(OWN, AllStacks((StackGroup((0,), F), StackGroup((2,), G)), ()))]


def hangs(on_hang: OnHang, restarts: int = 0, nodes: int = 2) -> Replay:
    """Return a job none of whose ranks has moved for 60 s, as ``--on-hang`` is to act on it."""
    job = running(nodes, restarts)
    job.state.terms = replace(job.state.terms, on_hang=on_hang)
    job.waits(60.0)
    for number in range(nodes):
        job.sends_stacks(number, Idle(0, 60.0))
    return job


def test_a_hang_ends_the_job() -> None:
    """With the stacks: node 0 names who is waited for, and so does the reason on all nodes."""
    job = hangs(OnHang.STOP, restarts=1, nodes=3)
    for number, text in enumerate((F, G, F)):
        assert job.stops == {}
        answers(job, number, text)
    assert job.notices == [
        job_notices.hangs(60.0, "then the job is stopped (--on-hang)"),
        job_notices.waited_for((1,)),
    ]
    assert set(job.stops.values()) == {job_notices.nothing_moves(60.0)}
    assert isinstance(job.sent_to(OWN)[-1], Stop)

    for number in range(3):
        # They fail as they are stopped.
        job.is_done(number, [(fate(number, 1), 0.0)])
    assert job.verdicts == dict.fromkeys(range(3), Hung(60.0, (1,), ""))
    assert job.objections == [""] * 3


def test_a_hang_restarts_the_job() -> None:
    """It counts as a restart: if none is left, the job ends."""
    job = hangs(OnHang.RESTART, restarts=1)
    assert job.notices == [job_notices.hangs(60.0, "then all workers are restarted (--on-hang)")]
    for number in range(2):
        answers(job, number, F)
    for number in range(2):
        job.is_done(number, [(fate(number), 0.0)])
    [first, _] = [message for _, message in job.sent if isinstance(message, NextAttempt)]
    assert (first.world.attempt, first.reason) == (1, Hung(60.0, (), ""))
    assert first.progress.restarts == 1

    job.waits(60.0)
    for number in range(2):
        job.sends_stacks(number, Idle(1, 60.0))
    assert job.notices[-1] == job_notices.hangs(60.0, "then the job is stopped (--on-hang)")
    for number in range(2):
        answers(job, number, F, round_=2)
    for number in range(2):
        job.is_done(number)
    assert set(job.verdicts.values()) == {Hung(60.0, (), "")}
    assert job.objections == [job_notices.no_restart_left(1)] * 2


def test_a_rank_moves_while_stacks_are_collected() -> None:
    """It was no hang: nothing is ended."""
    job = hangs(OnHang.STOP)
    answers(job, 0, F)
    job.sends_stacks(1, Idle(0, 0.0))
    answers(job, 1, F)

    assert len(shown(job)) == 1
    assert job.stops == {}


def test_a_worker_fails_while_stacks_are_collected() -> None:
    """Its failure is the reason."""
    job = hangs(OnHang.STOP)
    answers(job, 0, F)
    job.fails(1, fate(1, 1))
    before = len(job.sent)
    answers(job, 1, F)
    job.waits(1000)

    assert [message for _, message in job.sent[before:] if isinstance(message, Stop)] == []
    assert len(asked(job)) == 2


def test_a_suspension_has_a_time_limit_of_its_own() -> None:
    """A rank that saves prints nothing; once the suspension is cancelled, the hang counts."""
    job = hangs(OnHang.STOP, nodes=1)
    job.happens(MessageReceived(OWN, RequestSuspension("SIGTERM"), job.now))
    answers(job, 0, F)
    assert job.stops == {}
    job.happens(MessageReceived(OWN, RankLeft(0, 0), job.now))
    job.waits(60.0)
    answers(job, 0, F, round_=2)

    assert job.notices[-1] == job_notices.hangs(120.0, "then the job is stopped (--on-hang)")
    assert set(job.stops.values()) == {job_notices.nothing_moves(120.0)}


def test_a_report_of_a_rank_without_a_stack_is_not_the_last_one() -> None:
    """Its script had perhaps not begun; one that has exited shows no more."""
    job = hangs(OnHang.REPORT)
    answers(job, 0, F)
    job.sends_stacks(1, Stacks(0, 1, (StackGroup((1,), "no handler", found=False),)))
    job.waits(60.0)
    answers(job, 0, F, round_=2)
    job.sends_stacks(1, Stacks(0, 2, (StackGroup((1,), EXITED, found=False),)))
    job.waits(1000.0)

    assert job.notices == [
        job_notices.hangs(60.0, "nothing is ended"),
        job_notices.waited_for((1,)),
        job_notices.hangs(120.0, "nothing is ended"),
        job_notices.waited_for((1,)),
    ]


def test_a_hang_that_has_ended_is_not_reported_again() -> None:
    """A worker has failed meanwhile, and all are being stopped."""
    job = hangs(OnHang.REPORT)
    job.waits(SECONDS_TO_ANSWER)
    job.fails(1, fate(1, 1))
    job.waits(1000.0)

    assert job.notices[0] == job_notices.hangs(60.0, "nothing is ended")
    assert len(asked(job)) == 2


def test_a_hang_while_a_user_asks_for_stacks() -> None:
    """It is told after that."""
    job = running(1)
    job.waits(60.0)
    job.sends_stacks(0, RequestStacks(0))
    job.sends_stacks(0, Idle(0, 60.0))
    answers(job, 0, F)
    job.waits(0.0)

    assert job.notices == [job_notices.hangs(60.0, "nothing is ended")]
    assert [message.number for _, message in asked(job)] == [1, 2]
