"""Which failure is the cause, and which ones are consequences."""

import signal
from collections.abc import Sequence

import pytest

from tests.network.nodes import fate as any_fate
from tests.policy.door import LAST_LINES, choose_cause, is_consequence, outcome

GLOO = (
    "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error"
    " [127.0.0.1]:27826: Connection reset by peer. This is typically caused by a remote worker"
    " hanging or bugs in the application."
)
GLOO_CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:41"
GLOO_JOINING = "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error"
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, remote process"
    " exited or there was a network error, NCCL version 2.21.5"
)
NCCL_REMOTE = "ncclRemoteError: A call failed possibly due to a network error"
STORE = (
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely"
    " closed. Did the remote server shutdown or crash?"
)
OWN = "Traceback (most recent call last):\nValueError: the loss is not a number"
IGNORED = (
    "Exception ignored in: <function Store.__del__ at 0x7f>\n"
    "Traceback (most recent call last):\n"
    '  File "store.py", line 3, in __del__\n'
    "ConnectionResetError: [Errno 104] Connection reset by peer\n"
)
OUT_OF_MEMORY = "the kernel's OOM killer has struck once"


def fate(
    rank: int,
    ending: outcome.Ending,
    tail: str = "",
    *,
    by_us: bool = False,
    out_of_memory: str = "",
) -> outcome.Fate:
    """Return the fate of a worker."""
    return any_fate(
        rank, ending=ending, tail=tail, stopped_by_us=by_us, out_of_memory=out_of_memory
    )


FAILED = fate(0, outcome.Exited(1), OWN)
STRUCK = fate(1, outcome.Killed(signal.SIGSEGV))
STARVED = fate(2, outcome.Killed(signal.SIGKILL), out_of_memory=OUT_OF_MEMORY)
CONSEQUENCE = fate(3, outcome.Exited(1), GLOO)
SLOW = fate(4, outcome.Exited(1), OWN, by_us=True)
STOPPED = fate(5, outcome.Killed(signal.SIGTERM), by_us=True)
WELL = fate(6, outcome.Exited(0))


@pytest.mark.parametrize(
    ("fates", "cause"),
    [
        ([WELL, FAILED], FAILED),
        ([FAILED, fate(1, outcome.Exited(2), OWN)], FAILED),
        ([CONSEQUENCE, FAILED], FAILED),
        ([FAILED, STRUCK], STRUCK),
        ([STRUCK, STARVED], STARVED),
        ([CONSEQUENCE, SLOW], SLOW),
        ([CONSEQUENCE, STOPPED], CONSEQUENCE),
        ([SLOW, FAILED], FAILED),
        ([CONSEQUENCE, fate(1, outcome.Exited(1), NCCL)], CONSEQUENCE),
    ],
)
def test_the_cause(fates: Sequence[outcome.Fate], cause: outcome.Fate) -> None:
    """Out of memory, then a signal from outside, then a reason of its own; then the earliest."""
    assert choose_cause(fates) is cause


@pytest.mark.parametrize("fates", [[], [WELL], [WELL, STOPPED]])
def test_no_failure(fates: Sequence[outcome.Fate]) -> None:
    """A success is no failure, and neither is an end that the launcher caused."""
    assert choose_cause(fates) is None


@pytest.mark.parametrize(
    "ending",
    [
        outcome.Exited(1),
        outcome.Exited(143),
        outcome.Killed(signal.SIGKILL),
        outcome.NotStarted("session", "no"),
    ],
)
def test_a_stopped_worker_is_no_cause(ending: outcome.Ending) -> None:
    """However it reacted to the signal."""
    assert choose_cause([fate(0, ending, by_us=True)]) is None


@pytest.mark.parametrize(
    "late",
    [
        fate(0, outcome.Exited(1), OWN, by_us=True),
        fate(0, outcome.Killed(signal.SIGSEGV), by_us=True),
    ],
)
def test_a_worker_that_was_failing_when_it_was_stopped(late: outcome.Fate) -> None:
    """It failed for a reason of its own, as its peer's consequence shows."""
    assert choose_cause([CONSEQUENCE, late]) is late


def test_an_ignored_exception_is_no_failure() -> None:
    """A stopped worker printed it during its exit."""
    stopped = fate(1, outcome.Exited(1), IGNORED, by_us=True)

    assert choose_cause([CONSEQUENCE, stopped]) is CONSEQUENCE


def test_a_consequence_may_be_an_abort() -> None:
    """NCCL's watchdog ends its process with SIGABRT when a peer is lost."""
    watchdog = fate(1, outcome.Killed(signal.SIGABRT), NCCL_REMOTE)

    assert choose_cause([watchdog, FAILED]) is FAILED


def test_a_program_that_cannot_be_executed() -> None:
    """It has failed for its own reason."""
    absent = fate(0, outcome.NotStarted("execute train", "No such file or directory"))

    assert choose_cause([absent, STOPPED]) is absent


@pytest.mark.parametrize(
    "line",
    [
        GLOO,
        GLOO_CLOSED,
        GLOO_JOINING,
        NCCL,
        NCCL_REMOTE,
        STORE,
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "torch.distributed.DistStoreError: wait timeout after 300000ms",
    ],
)
def test_lines_that_blame_a_peer(line: str) -> None:
    """Messages of the libraries, in the last lines."""
    assert is_consequence(
        fate(0, outcome.Exited(1), f"Traceback (most recent call last):\n{line}\n  more\n")
    )


@pytest.mark.parametrize(
    "tail",
    [
        "",
        OWN,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data'",
        "\n".join([GLOO, *["line"] * LAST_LINES]),
        f"{OWN}\n{IGNORED}",
    ],
)
def test_lines_that_blame_no_peer(tail: str) -> None:
    """A reason of its own, or an old warning that had no effect."""
    assert not is_consequence(fate(0, outcome.Exited(1), tail))
