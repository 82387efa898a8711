"""Decoded answers to queries, and the coordinator's own queries."""

from clusterrun.policy import answers, job_events, messages, queries
from clusterrun.policy.coordinator import Coordinator
from clusterrun.policy.members import LOCAL_CONNECTION
from clusterrun.policy.nccl import NcclState
from clusterrun.policy.stacks import StackGroup
from msgspec.msgpack import encode

from tests.network.nodes import hello, opened_job

STACKS = answers.NodeStacks((StackGroup((0,), "in train"),))


def test_decoded_answers_and_missing_nodes() -> None:
    """A node that reports a problem, or answers something else, is named like one without an answer."""
    right = queries.Answer(1, 0, "n0", encode(STACKS))
    refused = queries.Answer(1, 3, "n3", problem="has no py-spy")
    strange = queries.Answer(1, 2, "n2", b"\xc1")
    lost = queries.MissingNode(1, "n1", "is lost: it is gone")

    found, missing = answers.decode_answers(
        queries.Answers((right, strange, refused), queries.EndOfAnswers(1, (lost,))),
        answers.NodeStacks,
    )

    assert found == ((right, STACKS),)
    assert [each.node_rank for each in missing] == [1, 2, 3]
    assert missing[1].why.startswith("sent an unexpected answer: ")
    assert missing[2].why == "has no py-spy"


def watched() -> Coordinator:
    """Return a job of two nodes that looks for hangs."""
    job = opened_job(2, hang_timeout=60.0)
    job.handle(job_events.CallerConnected(1.0))
    job.handle(job_events.HelloReceived(1, "10.0.0.1", hello(1, 2), 1.0))
    return job


def shown(job: Coordinator, number: int, message: messages.AgentMessage) -> list[str]:
    """Return what node 0 prints after a message."""
    actions = job.handle(job_events.MessageReceived(number, message, 22.0))
    sent = [each.message for each in actions if isinstance(each, job_events.Send)]
    return [each.text for each in sent if isinstance(each, messages.PrintStacks)]


def test_nccl_is_queried_once_for_two_reasons() -> None:
    """The query whether ranks are behind is in progress when a user requests the same."""
    job = watched()
    asked = job.handle(job_events.TimePassed(21.0))
    assert asked == [
        job_events.Send((LOCAL_CONNECTION,), queries.Query(1, queries.Topic.NCCL, 22.0, rank=0))
    ]
    job.handle(job_events.MessageReceived(0, messages.RequestStacks(), 22.0))

    shown(job, 0, queries.Answer(2, 0, "n0", encode(STACKS)))
    first = shown(job, 1, queries.Answer(2, 1, "n1", problem="does not know"))
    second = shown(job, 0, queries.Answer(1, 0, "n0", encode(NcclState(("moves",)))))

    assert first == ["  rank 0:\n    in train\n  node 1 (n1) does not know"]
    assert second == ["NCCL:\n  moves"]


def test_flight_records_are_printed_below_stacks() -> None:
    """With the host that has them."""
    job = watched()
    job.handle(job_events.MessageReceived(1, messages.RequestStacks(), 2.0))
    shown(job, 0, queries.Answer(1, 0, "n0", encode(STACKS)))
    written = answers.NodeStacks((), records="torch's flight recorder: /tmp/rank_1")

    assert shown(job, 1, queries.Answer(1, 1, "n1", encode(written))) == [
        "  rank 0:\n    in train\nn1: torch's flight recorder: /tmp/rank_1"
    ]


def test_node_that_cannot_query_nccl() -> None:
    """Nothing is printed about it; the next query follows."""
    job = watched()
    job.handle(job_events.TimePassed(21.0))

    assert shown(job, 0, queries.Answer(1, 0, "n0", problem="is busy")) == []
    assert job.due == 41.0
