"""A member can end its job, but do no more harm than that."""

from collections.abc import Iterable
from typing import Any

import pytest
from clusterrun.bounds import MAX_LINE_LENGTH, MAX_WORKERS
from clusterrun.job.job import MAIN, ProgramKind, WorkerProgram
from clusterrun.job.services import Service
from clusterrun.loop import NEVER
from clusterrun.network import channel
from clusterrun.policy import job_events, messages, notices, outcome, queries
from clusterrun.policy.cause import is_consequence
from clusterrun.policy.coordinator import Coordinator, Finished, Restarting, Running
from clusterrun.policy.notices import LineLimit
from msgspec.msgpack import encode

from tests.network.nodes import hello, opened_job, result

BEGAN = 1000.0
"""When the attempts of these tests begin."""

SUSPENDED = outcome.Suspended("clusterrun suspend", 3, 1.0, 0)


def running(nodes: int = 2, **values: Any) -> Coordinator:
    job = opened_job(nodes, **values)
    for number in range(1, nodes):
        calls(job, number, nodes=nodes)
    assert isinstance(job.state, Running)
    return job


def calls(job: Coordinator, number: int, nodes: int = 2, **says: Any) -> list[job_events.Action]:
    said = hello(number, nodes, **says)
    job.handle(job_events.CallerConnected(BEGAN))
    return job.handle(job_events.HelloReceived(number, f"10.0.0.{number}", said, BEGAN))


def sends(
    job: Coordinator, number: int, message: messages.AgentMessage, later: float = 8.0
) -> list[job_events.Action]:
    return job.handle(job_events.MessageReceived(number, message, BEGAN + later))


def lines(done: Iterable[job_events.Action]) -> list[str]:
    """Return what is printed anywhere."""
    found = []
    for each in done:
        match each:
            case job_events.PrintOnNodeZero(text) | job_events.Send(_, messages.Notice(text)):
                found.append(text)
            case _:
                pass
    return found


def sent(done: Iterable[job_events.Action], kind: type) -> list[Any]:
    """Return the messages of a kind that are sent; each can be taken."""
    found = [it.message for it in done if isinstance(it, job_events.Send)]
    for each in found:
        assert channel.FROM_COORDINATOR.decode(encode(each)) == each
    return [each for each in found if isinstance(each, kind)]


def disconnects(done: Iterable[job_events.Action], number: int) -> bool:
    return job_events.Disconnect((number,)) in [*done]


# What it says of itself and of others.


@pytest.mark.parametrize(
    "message",
    [
        messages.FirstFailure(0, result(1, 0), None),
        messages.EndedExternally(0, SUSPENDED),
        messages.EndedExternally(0, outcome.NotSuspended("x", 3, 60.0, ())),
        messages.Done(0, (), SUSPENDED),
    ],
)
def test_message_that_no_agent_sends(message: messages.AgentMessage) -> None:
    """Each would end the job with exit code 0, though its ranks were stopped."""
    job = running()

    done = sends(job, 1, message)

    [line] = lines(done)
    kind = type(message).__name__
    assert line == (f"refused n1 (pid 11) at 10.0.0.1: it sent an unexpected message ({kind})")
    assert disconnects(done, 1)


def test_message_that_no_agent_sends_between_attempts() -> None:
    """The job would have been suspended."""
    job = running(nodes=2, max_restarts=1, check="true")
    sends(job, 1, messages.Done(0, (messages.DatedResult(result(1, 1), None),), None))
    sends(job, 0, messages.Done(0, (), None))
    assert isinstance(job.state, Restarting)

    assert disconnects(sends(job, 1, messages.EndedExternally(0, SUSPENDED)), 1)
    assert isinstance(job.state, Restarting)


def test_idle_time_is_limited_to_the_attempt() -> None:
    """No longer than the attempt has run."""
    job = running(hang_timeout=5.0)
    sends(job, 1, messages.Idle(0, 60.0))

    [first, *_] = lines(sends(job, 0, messages.Idle(0, 60.0)))

    assert first.startswith("no rank has printed or exited for 8 s: ")


def test_idle_reports_without_end() -> None:
    """A hang is not reported without end: no rank can have been active and idle again in no time."""
    job = running(hang_timeout=5.0)
    sends(job, 0, messages.Idle(0, 8.0))
    told = []
    for number in range(200):
        told += lines(sends(job, 1, messages.Idle(0, 1e-9), later=8.0 + number / 100))
        told += lines(sends(job, 1, messages.Idle(0, 0.0), later=8.0 + number / 100))
        told += lines(job.handle(job_events.TimePassed(BEGAN + 8.0 + number / 100)))
        for node in (0, 1):
            for query in range(1, 9):
                stacks = queries.Answer(query, node, f"n{node}", problem="no")
                sends(job, node, stacks, later=8.0 + number / 100)

    assert len([line for line in told if "printed or exited" in line]) == 1


def test_exit_times_before_the_attempt() -> None:
    """They are named a minute later, and not at once."""
    job = running()
    sends(job, 1, messages.RanksExited(0, (messages.DatedExit(1, 0.0),)))

    assert job.due == BEGAN + 60.0


def test_failure_time_before_the_attempt_is_not_the_first() -> None:
    """Node 0's rank failed as the attempt began."""
    job = running()
    sends(job, 0, messages.FirstFailure(0, result(0, 1), BEGAN - 1.0))
    sends(job, 0, messages.Done(0, (messages.DatedResult(result(0, 1), BEGAN - 1.0),), None))
    done = sends(job, 1, messages.Done(0, (messages.DatedResult(result(1, 7), 5.0),), None))

    [verdict] = sent(done, messages.Verdict)
    assert verdict.reason.cause.rank == 0


def test_answer_has_the_senders_rank() -> None:
    """It cannot answer for another node."""
    job = running(nodes=3)
    [query] = sent(sends(job, 0, queries.Query(7, queries.Topic.RANKS, 1.2)), queries.Query)

    [answer] = sent(sends(job, 1, queries.Answer(query.number, 2, "n2", b"x")), queries.Answer)

    assert answer == queries.Answer(7, 1, "n1", b"x")


# What it makes node 0 send.


def test_highest_mark() -> None:
    """All others would lose node 0 by the one after it."""
    job = running()
    sends(job, 0, messages.RequestSuspension("x"))
    sends(job, 1, messages.HoldReport(0, messages.MAX_STEP_COUNT))

    [order, *_] = sent(sends(job, 0, messages.HoldReport(0, 1)), messages.SaveAt)

    assert order.step_count == messages.MAX_STEP_COUNT


@pytest.mark.parametrize("are_silent", [False, True])
def test_more_unsaved_ranks_than_one_message_names(*, are_silent: bool) -> None:
    """Those of each node fit."""
    job = running(nodes=3)
    sends(job, 0, messages.RequestSuspension("x"))
    for node in range(3):
        sends(job, node, messages.HoldReport(0, 3))
    for node in range(3):
        late = (node,) * outcome.MAX_RANKS
        sends(job, node, messages.SaveReport(0, 4, () if are_silent else late, late))
    done = job.handle(job_events.TimePassed(BEGAN + 10_000.0))
    done += job.handle(job_events.TimePassed(BEGAN + 20_000.0))

    assert isinstance(sent(done, messages.Stop)[0].external_cause, outcome.NotSuspended) or (
        are_silent
    )


def test_stop_at_once_is_sent_once() -> None:
    """A hundred requests must not cause a hundred orders to each node."""
    job = running()
    asks = messages.EndedExternally(0, outcome.Interrupted(15), at_once=True)
    done = [each for _ in range(100) for each in sends(job, 1, asks)]

    assert len(sent(done, messages.Stop)) == 1


def test_longest_reasons_of_refused_nodes() -> None:
    """Each is as long as a line may be."""
    job = opened_job(9, check="true")
    long = "x" * MAX_LINE_LENGTH
    for number in range(1, 8):
        calls(job, number, 9, run_id="other", host=long[:255], must={"nnodes": long})
        calls(job, number + 20, 9, must={"nnodes": long})
    job._refused = [long] * 8  # noqa: SLF001 - as checks that fail would leave it

    done = job.handle(job_events.TimePassed(BEGAN + 600.0))

    assert sent(done, messages.Refused)


def test_longest_loss() -> None:
    """The others are told of it, even where they query the missing nodes."""
    job = running(nodes=2, fewest_nodes=1)
    helper = outcome.HelperFailed("relay", "x" * MAX_LINE_LENGTH, 0)

    assert sent(sends(job, 1, messages.EndedExternally(0, helper)), messages.Stop)
    done = sends(job, 0, queries.Query(7, queries.Topic.RANKS, 1.2))
    assert sent(done, queries.EndOfAnswers)


# Lines.


@pytest.mark.parametrize(
    "flood",
    [
        [messages.RequestSuspension("x")],
        [messages.RequestStacks()],
        [messages.Paused(paused=True), messages.Paused(paused=False)],
    ],
)
def test_lines_of_one_member_are_limited(flood: list[messages.AgentMessage]) -> None:
    """A ten-thousandth is not read by anyone."""
    job = running()
    sends(job, 0, messages.RanksSucceeded(0))
    done = []
    for number in range(1000):
        for message in flood:
            done += sends(job, 1, message, later=8.0 + number / 1000)
        for node in (0, 1):
            done += sends(job, node, queries.Answer(number, node, f"n{node}", problem="no"))

    assert 0 < len(lines(done)) <= notices.MAX_BURST
    stacks = sent(done, messages.PrintStacks)
    assert len(stacks) <= notices.MAX_BURST


def test_lines_of_member_that_rejoins_are_limited() -> None:
    """It is a different agent each time."""
    job = running(nodes=2, spares=1, nnodes=1)
    done = []
    for number in range(2, 1000):
        said = hello(number)
        done += job.handle(job_events.HelloReceived(number, "10.0.0.2", said, BEGAN))
        done += job.handle(job_events.MemberDisconnected(number, "", BEGAN))

    assert 0 < len(lines(done)) <= notices.MAX_BURST


def test_line_limit_recovers() -> None:
    """After many lines of one cause, those of another are printed; after a while, others of the first."""
    limit = LineLimit()
    at_once = [limit.allows("10.0.0.1", 5.0) for _ in range(100)]

    assert at_once == [*[True] * notices.MAX_BURST, *[False] * (100 - 64)]
    assert limit.is_spent("10.0.0.1", 5.0)
    assert not limit.is_spent("10.0.0.2", 5.0)
    assert limit.allows("10.0.0.2", 5.0)
    assert [limit.allows("10.0.0.1", 5.0 + notices.SECONDS_PER_LINE) for _ in range(2)] == [
        *(True, False)
    ]


def test_causes_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose lines are allowed again are forgotten."""
    monkeypatch.setattr(notices, "MAX_CAUSES", 100)
    limit = LineLimit()
    for number in range(1000):
        limit.allows(str(number), 10.0 * number)

    assert len(limit._spent_until) <= 100  # noqa: SLF001 - what it remembers


# Its end.


def overdue(job: Coordinator) -> list[job_events.Action]:
    """Let node 0 fail and end, and node 1 be silent about its end for long enough."""
    sends(job, 0, messages.FirstFailure(0, result(0, 1), None))
    sends(job, 0, messages.Done(0, (messages.DatedResult(result(0, 1), None),), None))
    grace = job.settings.job.failures.shutdown_timeout
    return job.handle(job_events.TimePassed(BEGAN + 8.0 + grace + 20.0))


def test_member_that_never_reports_its_end() -> None:
    """It may run; the job ends without it, and it gets the verdict."""
    job = running()

    done = overdue(job)

    [verdict] = sent(done, messages.Verdict)
    assert isinstance(verdict.reason, outcome.WorkerFailed)
    assert isinstance(job.state, Finished)
    assert disconnects(done, 1)


def test_member_with_debugged_rank() -> None:
    """Its user may take any time."""
    job = running(pdb=True)
    overdue(job)

    assert isinstance(job.state, Running)


@pytest.mark.parametrize("message", [messages.RankCallsSuspend(0), messages.HoldReport(0, 3)])
def test_suspend_call_while_job_ends(message: messages.AgentMessage) -> None:
    """It was in transit when another rank failed: no rank saves any more."""
    job = running()
    sends(job, 0, messages.FirstFailure(0, result(0, 1), None))

    assert sends(job, 1, message) == []
    assert isinstance(job.state, Running)


def test_paused_member_gets_the_time_of_its_pause() -> None:
    """And no more than that."""
    job = running()
    sends(job, 1, messages.Paused(paused=True))
    overdue(job)
    assert isinstance(job.state, Running)
    sends(job, 1, messages.Paused(paused=False), later=108.0)
    job.handle(job_events.TimePassed(BEGAN + 120.0))
    assert isinstance(job.state, Running)

    job.handle(job_events.TimePassed(BEGAN + 200.0))

    assert isinstance(job.state, Finished)


# How it joins.

SERVICE = Service(
    name="server", where="job.yaml:2", program=WorkerProgram(ProgramKind.EXECUTABLE, "serve", ())
)
OWN = (messages.ProgramOffer(MAIN, (7000,), 7001), messages.ProgramOffer("server", (7002,), 7003))


def with_services(*programs: messages.ProgramOffer, workers: int = 1) -> bool:
    """Return whether node 1 is let in with these programs."""
    job = opened_job(2, services=(SERVICE,), programs=OWN)
    calls(job, 1, programs=programs, workers=workers)
    return isinstance(job.state, Running)


def test_programs_that_are_not_of_the_job() -> None:
    """No other node would accept a world with them."""
    main, server = OWN

    assert with_services(main, server)
    assert with_services(server, workers=0)
    assert not with_services(server)
    assert not with_services(main, server, workers=2)
    assert not with_services(main, server, server)
    assert not with_services(main, messages.ProgramOffer("other", (7002,), 7003))
    assert not with_services(main, messages.ProgramOffer("server", (), 7003))
    assert not with_services(
        main, messages.ProgramOffer("server", (7002,) * (MAX_WORKERS + 1), 7003)
    )


@pytest.mark.parametrize("says", [{"workers": 0}, {"programs": OWN}])
def test_node_without_workers(says: dict[str, Any]) -> None:
    """In a job without services each node has some, and no programs."""
    job = opened_job(2)

    assert sent(calls(job, 1, **says), messages.Refused)
    assert job.due < NEVER


def test_services_only() -> None:
    """The job has no rank: all nodes are told."""
    server = OWN[1:]
    job = opened_job(2, services=(SERVICE,), programs=server, workers=0)

    done = calls(job, 1, programs=server, workers=0)

    [refused] = sent(done, messages.Refused)
    assert refused.text == "no node has a worker of the main program"


def test_role_of_services_only() -> None:
    """Its node accepts its world."""
    job = opened_job(2, services=(SERVICE,), programs=OWN)

    done = calls(job, 1, programs=OWN[1:], workers=0, role="other")

    assert len(sent(done, messages.WorldFormed)) == 2


# Its last lines.


def test_search_of_long_line_is_fast() -> None:
    """It could keep node 0 busy for minutes, while the others lose it."""
    assert not is_consequence(result(1, 1, tail="gloo" * 16000))
    assert is_consequence(result(1, 1, tail="gloo: connection timed out"))
