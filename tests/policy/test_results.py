"""The results of workers, and messages with them that fit into a frame."""

from typing import Any

import pytest
from clusterrun.bounds import MAX_WORKERS, GlobalRank, LocalRank
from clusterrun.network import channel
from clusterrun.policy import events, messages, outcome
from clusterrun.policy.node import Attempt, EndedWorker, RunningWorker
from clusterrun.policy.results import bounded, conclude, results_of
from msgspec.msgpack import encode

from tests.network.nodes import result
from tests.plans import job, plan_of


def attempt(**ended: EndedWorker) -> Attempt:
    """Return an attempt with these ended workers: ``rank0=...``."""
    state = Attempt(job(), plan_of(2, attempt=4, first_rank=8), foreground=False)
    state.ended = {LocalRank(int(name.removeprefix("rank"))): how for name, how in ended.items()}
    return state


def test_result_has_all_facts_about_a_worker() -> None:
    """The facts come from the plan, the events, the clock, the relay and the machine."""
    failed = EndedWorker(RunningWorker(101, 1.0), 10.0, 9.5, outcome.Exited(3), stopped_by_us=False)
    stopped = EndedWorker(
        RunningWorker(100, 1.0), 12.0, 12.0, outcome.Killed(15), stopped_by_us=True
    )
    state = attempt(rank1=failed, rank0=stopped)
    state.outputs[LocalRank(1)] = events.OutputEnded(
        LocalRank(1), "boom", '{"message": "boom"}', 11.0
    )

    first, second = results_of(
        state,
        {LocalRank(1): "the OOM killer struck"},
        {LocalRank(1): "logs/rank-9.err"},
        1000.0,
    )

    assert first == outcome.WorkerResult(
        rank=GlobalRank(9),
        local_rank=LocalRank(1),
        host="node7",
        pid=101,
        exit_status=outcome.Exited(3),
        stopped_by_us=False,
        clock=1009.5,
        ran_for=9.0,
        tail="boom",
        log="logs/rank-9.err",
        error='{"message": "boom"}',
        out_of_memory="the OOM killer struck",
    )
    assert second == outcome.WorkerResult(
        rank=GlobalRank(8),
        local_rank=LocalRank(0),
        host="node7",
        pid=100,
        exit_status=outcome.Killed(15),
        stopped_by_us=True,
        clock=1012.0,
        ran_for=11.0,
        tail="",
        log="",
        error="",
        out_of_memory="",
    )


def test_attempt_without_reason_raises() -> None:
    """It would be a bug in the policy."""
    with pytest.raises(AssertionError, match="an attempt ends by"):
        conclude(attempt(), ())


STOPPED = [
    result(rank, exit_status=outcome.Killed(15), stopped_by_us=True, tail="loss") for rank in (2, 3)
]
GOOD, BAD = result(0, tail="loss 0.1", error="{}"), result(1, 1, tail="Error: x", error="{}")
LONG_NAME = "gpu-node-0123.cluster.example.com"
LONG_LOG = "/home/user/experiments/logs/20261122-121900-12345/attempt-0/gpu-node-0123-0/rank-{}.err"
POO = "\N{PILE OF POO}" * (16 << 10)


def bounded_done(*results: outcome.WorkerResult, at: float | None = None) -> messages.Done:
    """Return the bounded report of these results; ``at`` is by node 0's clock."""
    message = bounded(messages.Done(0, tuple(messages.DatedResult(it, at) for it in results), None))
    assert isinstance(message, messages.Done)
    return message


def bounded_result(**values: Any) -> outcome.WorkerResult:
    """Return a result as its message has it; ``values`` are its fields."""
    message = bounded(messages.FirstFailure(0, result(0, 1, **values), None))
    assert isinstance(message, messages.FirstFailure)
    return message.result


@pytest.mark.parametrize(("at", "sent"), [(104.5, 104.5), (-3.0, 0.0), (None, None)])
def test_times_are_bounded(at: float | None, sent: float | None) -> None:
    """By node 0's clock, so the difference of two; None if no heartbeat was answered."""
    exits = messages.RanksExited(0, (messages.DatedExit(0, at),))

    assert bounded_done(result(0, 1), at=at).results[0].at == sent
    assert bounded(messages.FirstFailure(0, BAD, at)) == messages.FirstFailure(0, BAD, sent)
    assert bounded(exits) == messages.RanksExited(0, (messages.DatedExit(0, sent),))


@pytest.mark.parametrize(
    "message",
    [
        messages.Done(0, (messages.DatedResult(result(0, 1), 1.0),), None, lease_expired=True),
        messages.EndedExternally(0, outcome.Interrupted(15), at_once=True),
        messages.Idle(0, 1.0),
    ],
)
def test_message_within_bounds_is_unchanged(message: messages.AgentMessage) -> None:
    assert bounded(message) == message


@pytest.mark.parametrize(
    ("results", "sent"),
    [
        ([GOOD, BAD, *STOPPED], [BAD]),
        # With none, node 0 would see a success.
        ([GOOD, *STOPPED], STOPPED[:1]),
    ],
)
def test_only_possible_causes_are_sent(
    results: list[outcome.WorkerResult], sent: list[outcome.WorkerResult]
) -> None:
    """Node 0 does not need other results."""
    assert [it.result for it in bounded_done(*results).results] == sent


@pytest.mark.parametrize(
    "results",
    [
        # 256 workers with the longest tails, in characters of four bytes.
        [result(rank, 1, tail=POO, error=f'"{POO}"') for rank in range(256)],
        [
            result(it, 1, host=LONG_NAME, log=LONG_LOG.format(it), tail="Error\n" * 60, error="{}")
            for it in range(MAX_WORKERS)
        ],
    ],
    ids=["longest tails", "most workers"],
)
def test_results_fit_into_a_frame(results: list[outcome.WorkerResult]) -> None:
    assert len(encode(bounded_done(*results))) < channel.MAX_FRAME_BYTES
    first = bounded(messages.FirstFailure(0, results[0], None))
    assert len(encode(first)) < channel.MAX_FRAME_BYTES


def test_long_tail_keeps_its_end() -> None:
    """An error file that is too long is dropped."""
    long = "x" * (20 << 10)

    sent = bounded_result(tail=f"{long}ValueError: it", error=f'"{long}"')

    assert sent.tail.endswith("ValueError: it")
    assert (len(sent.tail), sent.error) == (16 << 10, "")


def test_long_traceback_keeps_both_ends() -> None:
    frames = "".join(f'  File "train.py", line {line}, in step\n' for line in range(500))
    tail = f"Traceback (most recent call last):\n{frames}ValueError: it"

    sent = bounded_result(tail=tail).tail

    assert sent.splitlines()[:2] == tail.splitlines()[:2]
    assert sent.endswith("\nValueError: it")
    assert len(sent) <= 16 << 10


def test_log_path_that_is_not_text_is_sent() -> None:
    """File names are bytes."""
    assert bounded_result(log="/logs/\udcff").log == "/logs/?"


def test_helper_failure_becomes_one_line() -> None:
    """An interpreter that crashes at its start prints several lines."""
    crash = "was killed by SIGSEGV:\n    Fatal Python error\x1b[0m\n    no frame"
    how = "was killed by SIGSEGV: Fatal Python error?[0m no frame"
    reason, sent = (outcome.HelperFailed("fork server", each, 11) for each in (crash, how))

    assert bounded(messages.EndedExternally(0, reason)) == messages.EndedExternally(0, sent)
    assert bounded(messages.Done(0, (), reason)) == messages.Done(0, (), sent)


def test_probe_error_becomes_one_line() -> None:
    """A server may answer with any bytes."""
    unready = outcome.NotReady(-1.0, "HTTP/1.1 500 \x1b[31mno\nway")

    sent = bounded_result(exit_status=unready).exit_status

    assert sent == outcome.NotReady(0.0, "HTTP/1.1 500 ?[31mno?way")
    assert sent.succeeded is False
