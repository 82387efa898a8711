"""Messages that no correct agent sends, or that come too late: at most their sender is lost."""

import pytest
from clusterrun.bounds import MAX_LINE_LENGTH
from clusterrun.loop import NEVER
from clusterrun.network import channel
from clusterrun.policy import answers, job_events, messages, outcome, queries
from clusterrun.policy.cause import MAX_EXTERNAL_CAUSES
from clusterrun.policy.coordinator import Coordinator, Restarting, Running
from clusterrun.policy.members import LOCAL_CONNECTION
from clusterrun.policy.stacks import StackGroup
from msgspec.msgpack import encode

from tests.network.nodes import hello, opened_job, result


def running(nodes: int) -> Coordinator:
    """Return a job that all nodes have joined, each with one worker."""
    job = opened_job(nodes, max_restarts=1)
    for number in range(1, nodes):
        calls(job, number)
    assert isinstance(job.state, Running)
    return job


def ended(nodes: int) -> Coordinator:
    """Return a job that is over."""
    job = running(nodes)
    for number in range(nodes):
        sends(job, number, messages.Done(0, (), None))
    return job


def calls(job: Coordinator, number: int) -> list[job_events.Action]:
    said = hello(number, job.settings.nodes)
    job.handle(job_events.CallerConnected(1.0))
    return job.handle(job_events.HelloReceived(number, f"10.0.0.{number}", said, 1.0))


def sends(job: Coordinator, number: int, message: messages.AgentMessage) -> list[job_events.Action]:
    return job.handle(job_events.MessageReceived(number, message, 2.0))


def dropped(kind: str) -> list[job_events.Action]:
    """Return what is done about node 1 that has sent a message of this kind which no agent sends."""
    what = f"it sent an unexpected message ({kind})"
    return [
        job_events.PrintOnNodeZero(f"refused n1 (pid 11) at 10.0.0.1: {what}"),
        job_events.Disconnect((1,)),
    ]


SIGQUIT = messages.RequestStacks()


def stacks(*groups: StackGroup) -> queries.Answer:
    """Return the answer of a node to the first query."""
    return queries.Answer(1, 0, "n0", encode(answers.NodeStacks(groups)))


def test_message_on_unknown_connection() -> None:
    """It was dropped, or never joined."""
    assert sends(running(2), 9, messages.Idle(0, 9.0)) == [job_events.Disconnect((9,))]


def test_message_of_later_attempt() -> None:
    """The sender cannot know any later attempt than the current one."""
    assert sends(running(2), 1, messages.Idle(1, 9.0)) == dropped("Idle")


@pytest.mark.parametrize(
    "message",
    [
        messages.Done(
            0,
            (messages.DatedResult(result(1, 1), 0.0), messages.DatedResult(result(2, 1), 0.0)),
            None,
        ),
        messages.SaveReport(0, 0, (3,), ()),
        messages.SaveReport(0, 0, (1,), (0,)),
        messages.RankExitedEarly(0, 2),
        messages.RanksExited(0, (messages.DatedExit(0, 0.0),)),
        stacks(StackGroup((1, 2), "in train")),
        queries.Answer(1, 1, "n1", b"\xc1"),
        queries.Answer(1, 1, "n1", encode(answers.NodeRanks(1, 0, "running", ()))),
    ],
    ids=lambda message: type(message).__name__,
)
def test_ranks_of_other_nodes(message: messages.AgentMessage) -> None:
    """A node of one worker, rank 1, reports another rank, or answers something else: it is lost."""
    job = running(3)
    sends(job, 0, SIGQUIT)

    assert sends(job, 1, message) == dropped(type(message).__name__)
    assert job.handle(job_events.MemberDisconnected(1, "", 3.0, has_ended=False)) == [
        job_events.Send((0, 2), messages.Stop(0, "node 1 (n1) is gone"))
    ]


def test_messages_of_waiting_node_are_ignored() -> None:
    """It waits for a rank, and may have had one."""
    job = opened_job(2, spares=1)
    calls(job, 1)

    assert isinstance(job.state, Running)
    for message in (
        messages.FirstFailure(0, result(0, 1), 0.0),
        messages.Done(0, (), None),
        messages.Paused(paused=True),
    ):
        assert sends(job, 1, message) == []


def test_stacks_of_unknown_ranks_are_dropped() -> None:
    """Those of the same message are printed."""
    job = running(2)
    sends(job, 0, SIGQUIT)
    sends(job, 1, stacks(StackGroup((), "in eval"), StackGroup((1,), "in train")))

    shown = messages.PrintStacks("  rank 1:\n    in train")
    assert sends(job, 0, stacks())[0] == job_events.Send((LOCAL_CONNECTION,), shown)


def test_suspension_answers_without_request_are_ignored() -> None:
    """They are late."""
    job = running(2)

    for message in (
        messages.RankExitedEarly(0, 1),
        messages.HoldReport(0, 1),
        messages.SaveReport(0, 1, (), ()),
    ):
        assert (sends(job, 1, message), job.due) == ([], NEVER)


def test_check_result_without_request_is_ignored() -> None:
    """Whatever it is and whenever it comes, even while another node is checked."""
    job = opened_job(2, max_restarts=1, check="./check")
    calls(job, 1)
    found = messages.CheckResult("GPU 3 is lost")

    assert sends(job, 1, found) == []
    for number in (0, 1):
        failed = (messages.DatedResult(result(1, 1), 0.0),) if number else ()
        sends(job, number, messages.Done(0, failed, None))
    assert sends(job, 0, found) == []
    assert isinstance(job.state, Restarting)


def test_node_0_that_fails_its_check_ends_job_at_once() -> None:
    """Others may still connect while they check themselves; it names its fault."""
    assert opened_job(2, fault="GPU 3 is lost").due == 0.0
    assert opened_job(2).due > 0.0


def test_waiting_member_ended_by_user() -> None:
    """It leaves, and the job continues."""
    job = opened_job(2, nnodes=1, spares=1)
    calls(job, 1)

    send, disconnect, shown = sends(job, 1, messages.EndedExternally(0, outcome.Interrupted(15)))
    assert send == job_events.Send((1,), messages.Verdict(outcome.Interrupted(15), ""))
    assert disconnect == job_events.Disconnect((1,))
    assert isinstance(shown, job_events.PrintOnNodeZero)
    assert isinstance(job.state, Running)


def test_events_after_the_end_change_nothing() -> None:
    """All agents have the verdict, and end by themselves; node 0 cannot refuse them any more."""
    job = ended(2)
    late = (
        messages.FirstFailure(0, result(1, 1), 0.0),
        messages.Paused(paused=True),
        SIGQUIT,
        messages.Idle(0, 9.0),
    )

    assert [sends(job, 1, message) for message in late] == [[], [], [], []]
    for event in (
        job_events.MemberDisconnected(1, "", 3.0),
        job_events.JoinAbandoned("n0 got SIGINT", 3.0),
        job_events.TimePassed(1000.0),
    ):
        assert job.handle(event) == []


def test_port_without_request_is_ignored() -> None:
    """It begins no attempt: none has ended, or none follows."""
    for job in (opened_job(2), running(2), ended(2)):
        before = job.attempt

        assert job.handle(job_events.PortReady(29501, 3.0)) == []
        assert job.attempt == before


def test_external_causes_are_limited() -> None:
    """A scheduler signals all nodes at once; one member must not fill the memory."""
    job = running(2)
    for number in range(1000):
        sends(job, 1, messages.EndedExternally(0, outcome.Interrupted(number)))

    assert isinstance(job.state, Running)
    assert list(job.state.evidence.external) == list(
        map(outcome.Interrupted, range(MAX_EXTERNAL_CAUSES))
    )


def test_longest_name_of_helper_process_is_forwarded() -> None:
    """What one member may send, node 0 may forward: the others do not lose node 0."""
    job = running(2)
    sends(
        job,
        1,
        messages.EndedExternally(0, outcome.HelperFailed("x" * MAX_LINE_LENGTH, "exited", 0)),
    )
    sends(job, 0, messages.Done(0, (), None))

    [verdict] = sends(job, 1, messages.Done(0, (), None))

    assert isinstance(verdict, job_events.Send)
    assert isinstance(verdict.message, messages.Verdict)
    assert channel.FROM_COORDINATOR.decode(encode(verdict.message)) == verdict.message


def test_longest_refusal_is_sent() -> None:
    """It names missing and refused nodes, each with the longest name."""
    job = opened_job(400, hosts=tuple(f"{number:0>250}" for number in range(400)))
    for number in range(1, 300):
        said = hello(number, 400, host=f"{number:1>250}", user_id=7 if number < 50 else 1000)
        job.handle(job_events.HelloReceived(number, "10.0.0.1", said, 1.0))

    refusal, *_ = job.handle(job_events.TimePassed(600.0))

    assert isinstance(refusal, job_events.Send)
    assert isinstance(refusal.message, messages.Refused)
    assert channel.FROM_COORDINATOR.decode(encode(refusal.message)) == refusal.message
