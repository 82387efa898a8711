"""Messages that no correct agent sends, or that come too late: at most their sender is lost.

A member can end its job, but do no more harm than that.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from clusterrun.bounds import MAX_LINE_LENGTH, MAX_WORKERS
from clusterrun.job.job import MAIN, ProgramKind, WorkerProgram
from clusterrun.job.services import Service
from clusterrun.loop import NEVER
from clusterrun.network import channel
from clusterrun.policy import answers, job_events, messages, notices, outcome, queries
from clusterrun.policy.cause import MAX_EXTERNAL_CAUSES, is_consequence
from clusterrun.policy.coordinator import Coordinator, Finished, Restarting, Running
from clusterrun.policy.members import LOCAL_CONNECTION
from clusterrun.policy.notices import LineLimit
from clusterrun.policy.stacks import StackGroup
from msgspec.msgpack import encode

from tests.network.nodes import hello, opened_job, result

BEGAN = 1000.0
"""When the attempts of these tests begin."""

SUSPENDED = outcome.Suspended("clusterrun suspend", 3, 1.0, 0)
SIGQUIT = messages.RequestStacks()
PAUSED, CONTINUED = messages.Paused(paused=True), messages.Paused(paused=False)
SUSPEND = messages.RequestSuspension("x")
FAILURE = messages.FirstFailure(0, result(0, 1), None)
RANKS = queries.Query(7, queries.Topic.RANKS, 1.2)


def joins(job: Coordinator, number: int, **says: Any) -> list[job_events.Action]:
    said = hello(number, job.settings.nodes, **says)
    job.handle(job_events.CallerConnected(BEGAN))
    return job.handle(job_events.HelloReceived(number, f"10.0.0.{number}", said, BEGAN))


def running(nodes: int = 2, **values: Any) -> Coordinator:
    """Return a job that all nodes have joined, each with one worker."""
    job = opened_job(nodes, **values)
    for number in range(1, nodes):
        joins(job, number)
    assert isinstance(job.state, Running)
    return job


def sends(
    job: Coordinator, number: int, *sent: messages.AgentMessage, later: float = 8.0
) -> list[job_events.Action]:
    """Have a node send messages; return what follows."""
    got = (job_events.MessageReceived(number, each, BEGAN + later) for each in sent)
    return [action for each in got for action in job.handle(each)]


def passes(job: Coordinator, seconds: float) -> list[job_events.Action]:
    return job.handle(job_events.TimePassed(BEGAN + seconds))


def done(*results: outcome.WorkerResult, at: float | None = None) -> messages.Done:
    return messages.Done(0, tuple(messages.DatedResult(each, at) for each in results), None)


def lines(actions: Iterable[job_events.Action]) -> list[str]:
    """Return what is printed anywhere."""
    texts = [getattr(each, "message", each) for each in actions]
    printed = (job_events.PrintOnNodeZero, messages.Notice)
    return [each.text for each in texts if isinstance(each, printed)]


def sent(actions: Iterable[job_events.Action], kind: type) -> list[Any]:
    """Return the messages of a kind that are sent; each can be taken."""
    found = [it.message for it in actions if isinstance(it, job_events.Send)]
    for each in found:
        assert channel.FROM_COORDINATOR.decode(encode(each)) == each
    return [each for each in found if isinstance(each, kind)]


def refused(message: object) -> list[job_events.Action]:
    """Return what follows if node 1 has sent such a message."""
    what = f"it sent an unexpected message ({type(message).__name__})"
    return [
        job_events.PrintOnNodeZero(f"refused n1 (pid 11) at 10.0.0.1: {what}"),
        job_events.Disconnect((1,)),
    ]


def stacks(*groups: StackGroup, node: int = 0, number: int = 1) -> queries.Answer:
    return queries.Answer(number, node, f"n{node}", encode(answers.NodeStacks(groups)))


# What is refused, or ignored.


@pytest.mark.parametrize(
    "message",
    [
        # Each would end the job with exit code 0, though its ranks were stopped.
        messages.FirstFailure(0, result(1, 0), None),
        messages.EndedExternally(0, SUSPENDED),
        messages.EndedExternally(0, outcome.NotSuspended("x", 3, 60.0, ())),
        messages.Done(0, (), SUSPENDED),
        # The sender cannot know any later attempt than the current one.
        messages.Idle(1, 9.0),
        # Its node has one worker, rank 1.
        done(result(1, 1), result(2, 1)),
        messages.SaveReport(0, 0, (3,), ()),
        messages.SaveReport(0, 0, (1,), (0,)),
        messages.RankExitedEarly(0, 2),
        messages.RanksExited(0, (messages.DatedExit(0, 0.0),)),
        stacks(StackGroup((1, 2), "in train"), node=1),
        # It was asked for its stacks.
        queries.Answer(1, 1, "n1", b"\xc1"),
        queries.Answer(1, 1, "n1", encode(answers.NodeRanks(1, 0, "running", ()))),
    ],
    ids=lambda message: type(message).__name__,
)
def test_message_that_no_agent_sends_is_refused(message: messages.AgentMessage) -> None:
    job = running(3)
    sends(job, 0, SIGQUIT)

    assert sends(job, 1, message) == refused(message)
    gone = job_events.MemberDisconnected(1, "", BEGAN + 9, has_ended=False)
    assert job.handle(gone) == [job_events.Send((0, 2), messages.Stop(0, "node 1 (n1) is gone"))]


def test_message_that_no_agent_sends_between_attempts_is_refused() -> None:
    """The job would have been suspended."""
    job = running(max_restarts=1, check="true")
    sends(job, 1, done(result(1, 1)))
    sends(job, 0, done())
    assert isinstance(job.state, Restarting)
    message = messages.EndedExternally(0, SUSPENDED)

    assert sends(job, 1, message) == refused(message)
    assert isinstance(job.state, Restarting)


def test_unknown_connection_is_closed() -> None:
    """It was dropped, or never joined."""
    assert sends(running(), 9, messages.Idle(0, 9.0)) == [job_events.Disconnect((9,))]


def with_waiting_node() -> Coordinator:
    """Return a job in which node 1 waits for a rank, and may have had one."""
    job = opened_job(2, spares=1)
    joins(job, 1)
    assert isinstance(job.state, Running)
    return job


def failing() -> Coordinator:
    """Return a job whose ranks are stopped: no rank saves any more."""
    job = running()
    sends(job, 0, FAILURE)
    return job


def ended() -> Coordinator:
    """Return a job that is over: all agents have the verdict, and end by themselves."""
    job = running()
    for number in range(2):
        sends(job, number, done())
    return job


@pytest.mark.parametrize(
    ("begun", "late"),
    [
        (with_waiting_node, [FAILURE, done(), PAUSED]),
        (running, [messages.RankExitedEarly(0, 1)]),
        (running, [messages.HoldReport(0, 1), messages.SaveReport(0, 1, (), ())]),
        (running, [messages.CheckResult("GPU 3 is lost")]),
        (failing, [messages.RankCallsSuspend(0), messages.HoldReport(0, 3)]),
        (ended, [messages.FirstFailure(0, result(1, 1), 0.0), PAUSED, SIGQUIT]),
        (ended, [messages.Idle(0, 9.0)]),
    ],
)
def test_late_message_is_ignored(
    begun: Callable[[], Coordinator], late: Sequence[messages.AgentMessage]
) -> None:
    """Or one that nobody has asked for."""
    job = begun()
    state, due = type(job.state), job.due

    assert sends(job, 1, *late) == []
    assert (type(job.state), job.due) == (state, due)


def test_check_result_while_another_node_is_checked_is_ignored() -> None:
    job = running(max_restarts=1, check="./check")
    sends(job, 0, done())
    sends(job, 1, done(result(1, 1)))

    assert sends(job, 0, messages.CheckResult("GPU 3 is lost")) == []
    assert isinstance(job.state, Restarting)


def test_events_after_the_end_are_ignored() -> None:
    job = ended()
    for event in (
        job_events.MemberDisconnected(1, "", BEGAN),
        job_events.JoinAbandoned("n0 got SIGINT", BEGAN),
        job_events.TimePassed(BEGAN + 1000.0),
    ):
        assert job.handle(event) == []


@pytest.mark.parametrize("begun", [lambda: opened_job(2), running, ended])
def test_port_without_request_is_ignored(begun: Callable[[], Coordinator]) -> None:
    """It begins no attempt: none has ended, or none follows."""
    job = begun()
    before = job.attempt

    assert job.handle(job_events.PortReady(29501, BEGAN)) == []
    assert job.attempt == before


def test_node_0_that_fails_its_check_ends_job_at_once() -> None:
    """Others may still connect while they check themselves; it names its fault."""
    assert opened_job(2, fault="GPU 3 is lost").due == 0.0
    assert opened_job(2).due > 0.0


def test_waiting_member_ended_by_user_leaves() -> None:
    job = with_waiting_node()

    send, disconnect, shown = sends(job, 1, messages.EndedExternally(0, outcome.Interrupted(15)))

    assert send == job_events.Send((1,), messages.Verdict(outcome.Interrupted(15), ""))
    assert disconnect == job_events.Disconnect((1,))
    assert isinstance(shown, job_events.PrintOnNodeZero)
    assert isinstance(job.state, Running)


def test_stacks_of_unknown_ranks_are_dropped() -> None:
    """Those of the same message are printed."""
    job = running()
    sends(job, 0, SIGQUIT)
    sends(job, 1, stacks(StackGroup((), "in eval"), StackGroup((1,), "in train"), node=1))

    shown = messages.PrintStacks("  rank 1:\n    in train")
    assert sends(job, 0, stacks())[0] == job_events.Send((LOCAL_CONNECTION,), shown)


# What it says of itself and of others.


def test_idle_time_is_limited_to_the_attempt() -> None:
    job = running(hang_timeout=5.0)
    sends(job, 1, messages.Idle(0, 60.0))

    [first, *_] = lines(sends(job, 0, messages.Idle(0, 60.0)))

    assert first.startswith("no rank has printed or exited for 8 s: ")


def test_idle_reports_without_end_are_one_hang() -> None:
    """No rank can have been active and idle again in no time."""
    job = running(hang_timeout=5.0)
    sends(job, 0, messages.Idle(0, 8.0))
    printed = []
    for later in (8.0 + number / 100 for number in range(200)):
        idle = (messages.Idle(0, 1e-9), messages.Idle(0, 0.0))
        printed += lines(sends(job, 1, *idle, later=later))
        printed += lines(passes(job, later))
        for node in (0, 1):
            answer = [queries.Answer(it, node, f"n{node}", problem="no") for it in range(1, 9)]
            sends(job, node, *answer, later=later)

    assert len([line for line in printed if "printed or exited" in line]) == 1


def test_exit_times_before_the_attempt_count_from_its_start() -> None:
    job = running()
    sends(job, 1, messages.RanksExited(0, (messages.DatedExit(1, 0.0),)))

    assert job.due == BEGAN + 60.0


def test_failure_time_before_the_attempt_is_not_the_first() -> None:
    """Node 0's rank failed as the attempt began."""
    job = running()
    sends(job, 0, messages.FirstFailure(0, result(0, 1), BEGAN - 1.0))
    sends(job, 0, done(result(0, 1), at=BEGAN - 1.0))

    [verdict] = sent(sends(job, 1, done(result(1, 7), at=5.0)), messages.Verdict)

    assert verdict.reason.cause.rank == 0


def test_answer_has_the_senders_rank() -> None:
    job = running(3)
    [query] = sent(sends(job, 0, RANKS), queries.Query)

    [answer] = sent(sends(job, 1, queries.Answer(query.number, 2, "n2", b"x")), queries.Answer)

    assert answer == queries.Answer(7, 1, "n1", b"x")


# What it makes node 0 send, which others must be able to take.


def test_step_count_is_limited() -> None:
    job = running()
    sends(job, 0, SUSPEND)
    sends(job, 1, messages.HoldReport(0, messages.MAX_STEP_COUNT))

    [order, *_] = sent(sends(job, 0, messages.HoldReport(0, 1)), messages.SaveAt)

    assert order.step_count == messages.MAX_STEP_COUNT


@pytest.mark.parametrize("are_silent", [False, True])
def test_unsaved_ranks_in_a_message_are_limited(*, are_silent: bool) -> None:
    """Those of each node fit."""
    job = running(3)
    sends(job, 0, SUSPEND)
    for node in range(3):
        sends(job, node, messages.HoldReport(0, 3))
    for node in range(3):
        late = (node,) * outcome.MAX_RANKS
        sends(job, node, messages.SaveReport(0, 4, () if are_silent else late, late))
    actions = passes(job, 10_000.0) + passes(job, 20_000.0)

    external = sent(actions, messages.Stop)[0].external_cause
    assert isinstance(external, outcome.NotSuspended) or are_silent


def test_stop_at_once_is_sent_once() -> None:
    """A hundred requests must not cause a hundred orders to each node."""
    asks = messages.EndedExternally(0, outcome.Interrupted(15), at_once=True)

    assert len(sent(sends(running(), 1, *[asks] * 100), messages.Stop)) == 1


def test_external_causes_are_limited() -> None:
    """A scheduler signals all nodes at once; one member must not fill the memory."""
    job = running()
    sends(job, 1, *(messages.EndedExternally(0, outcome.Interrupted(it)) for it in range(1000)))

    assert isinstance(job.state, Running)
    kept = map(outcome.Interrupted, range(MAX_EXTERNAL_CAUSES))
    assert list(job.state.evidence.external) == list(kept)


LONG = "x" * MAX_LINE_LENGTH


def test_longest_refusals_are_sent() -> None:
    """Of nodes that are refused, and of a check that has failed."""
    job = opened_job(9, check="true")
    for number in range(1, 8):
        joins(job, number, run_id="other", host=LONG[:255], must={"nnodes": LONG})
        joins(job, number + 20, must={"nnodes": LONG})
    job._refused = [LONG] * 8  # noqa: SLF001 - as checks that fail would leave it

    assert sent(passes(job, 600.0), messages.Refused)


def test_refusal_of_most_nodes_is_sent() -> None:
    """It names missing and refused nodes, each with the longest name."""
    job = opened_job(400, hosts=tuple(f"{number:0>250}" for number in range(400)))
    for number in range(1, 300):
        joins(job, number, host=f"{number:1>250}", user_id=7 if number < 50 else 1000)

    assert sent(passes(job, 600.0), messages.Refused)


def test_longest_loss_is_sent() -> None:
    """The others are told of it, even where they query the missing nodes."""
    job = running(fewest_nodes=1)
    helper = outcome.HelperFailed("relay", LONG, 0)

    assert sent(sends(job, 1, messages.EndedExternally(0, helper)), messages.Stop)
    assert sent(sends(job, 0, RANKS), queries.EndOfAnswers)


def test_longest_name_of_helper_process_is_sent() -> None:
    job = running()
    helper = outcome.HelperFailed(LONG, "exited", 0)
    sends(job, 1, messages.EndedExternally(0, helper))
    sends(job, 0, done())

    assert sent(sends(job, 1, done()), messages.Verdict)


# Lines.


@pytest.mark.parametrize("flood", [[SUSPEND], [SIGQUIT], [PAUSED, CONTINUED]])
def test_lines_of_one_member_are_limited(flood: list[messages.AgentMessage]) -> None:
    """A ten-thousandth is not read by anyone."""
    job = running()
    sends(job, 0, messages.RanksSucceeded(0))
    actions = []
    for number in range(1000):
        actions += sends(job, 1, *flood, later=8.0 + number / 1000)
        for node in (0, 1):
            actions += sends(job, node, queries.Answer(number, node, f"n{node}", problem="no"))

    assert 0 < len(lines(actions)) <= notices.MAX_BURST
    assert len(sent(actions, messages.PrintStacks)) <= notices.MAX_BURST


def test_lines_of_member_that_rejoins_are_limited() -> None:
    """It is a different agent each time."""
    job = running(2, spares=1, nnodes=1)
    actions = []
    for number in range(2, 1000):
        said = hello(number)
        actions += job.handle(job_events.HelloReceived(number, "10.0.0.2", said, BEGAN))
        actions += job.handle(job_events.MemberDisconnected(number, "", BEGAN))

    assert 0 < len(lines(actions)) <= notices.MAX_BURST


# The second time and 64 intervals have a sum that is rounded up.
@pytest.mark.parametrize("now", [5.0, 3962.0213])
def test_line_limit_recovers(now: float) -> None:
    """After many lines of one cause, those of another are printed; after a while, others of the first."""
    limit = LineLimit()
    at_once = [limit.allows("10.0.0.1", now) for _ in range(100)]

    assert at_once == [*[True] * notices.MAX_BURST, *[False] * (100 - 64)]
    assert limit.is_spent("10.0.0.1", now)
    assert not limit.is_spent("10.0.0.2", now)
    assert limit.allows("10.0.0.2", now)
    later = now + notices.SECONDS_PER_LINE
    assert [limit.allows("10.0.0.1", later) for _ in range(2)] == [True, False]


def test_causes_whose_lines_are_allowed_again_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notices, "MAX_CAUSES", 100)
    limit = LineLimit()
    for number in range(1000):
        limit.allows(str(number), 10.0 * number)

    assert len(limit._spent_until) <= 100  # noqa: SLF001 - what it remembers


def test_search_of_long_line_is_fast() -> None:
    """It could keep node 0 busy for minutes, while the others lose it."""
    assert not is_consequence(result(1, 1, tail="gloo" * 16000))
    assert is_consequence(result(1, 1, tail="gloo: connection timed out"))


# Its end.


def overdue(job: Coordinator) -> list[job_events.Action]:
    """Let node 0 fail and end, and node 1 be silent about its end for long enough."""
    sends(job, 0, FAILURE, done(result(0, 1)))
    return passes(job, 8.0 + job.settings.job.failures.shutdown_timeout + 20.0)


def test_job_ends_without_a_member_that_never_reports_its_end() -> None:
    """It may run, and it gets the verdict."""
    job = running()

    actions = overdue(job)

    [verdict] = sent(actions, messages.Verdict)
    assert isinstance(verdict.reason, outcome.WorkerFailed)
    assert isinstance(job.state, Finished)
    assert job_events.Disconnect((1,)) in actions


def test_job_waits_for_a_debugged_rank() -> None:
    """Its user may take any time."""
    job = running(pdb=True)
    overdue(job)

    assert isinstance(job.state, Running)


def test_paused_member_gets_the_time_of_its_pause() -> None:
    """And no more than that."""
    job = running()
    sends(job, 1, PAUSED)
    overdue(job)
    states = [type(job.state)]
    sends(job, 1, CONTINUED, later=108.0)
    for seconds in (120.0, 200.0):
        passes(job, seconds)
        states.append(type(job.state))

    assert states == [Running, Running, Finished]


# How it joins.

SERVICE = Service(
    name="server", where="job.yaml:2", program=WorkerProgram(ProgramKind.EXECUTABLE, "serve", ())
)
OWN = (messages.ProgramOffer(MAIN, (7000,), 7001), messages.ProgramOffer("server", (7002,), 7003))
OWN_MAIN, SERVER = OWN


@pytest.mark.parametrize(
    ("programs", "workers", "is_admitted"),
    [
        ([OWN_MAIN, SERVER], 1, True),
        ([SERVER], 0, True),
        ([SERVER], 1, False),
        ([OWN_MAIN, SERVER], 2, False),
        ([OWN_MAIN, SERVER, SERVER], 1, False),
        ([OWN_MAIN, messages.ProgramOffer("other", (7002,), 7003)], 1, False),
        ([OWN_MAIN, messages.ProgramOffer("server", (), 7003)], 1, False),
        ([OWN_MAIN, messages.ProgramOffer("server", (7,) * (MAX_WORKERS + 1), 7003)], 1, False),
    ],
)
def test_node_with_other_programs_is_not_admitted(
    programs: list[messages.ProgramOffer], workers: int, *, is_admitted: bool
) -> None:
    """No other node would accept a world with them."""
    job = opened_job(2, services=(SERVICE,), programs=OWN)
    joins(job, 1, programs=tuple(programs), workers=workers)

    assert isinstance(job.state, Running) is is_admitted


@pytest.mark.parametrize("says", [{"workers": 0}, {"programs": OWN}])
def test_node_without_workers_is_refused(says: dict[str, Any]) -> None:
    """In a job without services each node has some, and no programs."""
    job = opened_job(2)

    assert sent(joins(job, 1, **says), messages.Refused)
    assert job.due < NEVER


def test_job_without_ranks_is_refused() -> None:
    """All nodes are told."""
    server = OWN[1:]
    job = opened_job(2, services=(SERVICE,), programs=server, workers=0)

    [no] = sent(joins(job, 1, programs=server, workers=0), messages.Refused)

    assert no.text == "no node has a worker of the main program"


def test_role_of_node_with_services_only_is_accepted() -> None:
    job = opened_job(2, services=(SERVICE,), programs=OWN)

    actions = joins(job, 1, programs=OWN[1:], workers=0, role="other")

    assert len(sent(actions, messages.WorldFormed)) == 2
