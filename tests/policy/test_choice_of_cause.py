"""The choice of the cause among several failures."""

import signal
from collections.abc import Sequence

import pytest
from clusterrun.policy import outcome
from clusterrun.policy.cause import LAST_LINES, choose_cause, is_consequence
from msgspec.structs import replace

from tests.network.nodes import result

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
FAILED = result(0, 1, tail=OWN)
STRUCK = result(1, exit_status=outcome.Killed(signal.SIGSEGV))
STARVED = result(
    2, exit_status=outcome.Killed(signal.SIGKILL), out_of_memory="the OOM killer has struck once"
)
CONSEQUENCE = result(3, 1, tail=GLOO)
SLOW = result(4, 1, tail=OWN, stopped_by_us=True)
STOPPED = result(5, exit_status=outcome.Killed(signal.SIGTERM), stopped_by_us=True)
WELL = result(6, 0)
STRUCK_LATE = result(7, exit_status=outcome.Killed(signal.SIGSEGV), stopped_by_us=True)
IGNORED_AT_EXIT = result(8, 1, tail=IGNORED, stopped_by_us=True)
WATCHDOG = result(9, exit_status=outcome.Killed(signal.SIGABRT), tail=NCCL_REMOTE)
WATCHDOG_OF_VICTIM = replace(WATCHDOG, out_of_memory=STARVED.out_of_memory)
STARVED_LATE = replace(STARVED, stopped_by_us=True, killed_by_others=True)
NOT_EXECUTED = result(
    10, exit_status=outcome.NotStarted("execute train", "No such file or directory")
)

OF_STOPPED = (
    outcome.Exited(1),
    outcome.Exited(143),
    outcome.Killed(signal.SIGKILL),
    outcome.NotStarted("session", "no"),
)
"""Exit statuses that are not causes if the worker was being stopped."""


@pytest.mark.parametrize(
    ("results", "cause"),
    [
        ([WELL, FAILED], FAILED),
        ([FAILED, result(1, 2, tail=OWN)], FAILED),
        ([CONSEQUENCE, FAILED], FAILED),
        ([FAILED, STRUCK], STRUCK),
        ([STRUCK, STARVED], STARVED),
        # The OOM killer's victim ends late, and the kill is also counted for the peer that it lost.
        ([WATCHDOG_OF_VICTIM, STARVED_LATE], STARVED_LATE),
        ([CONSEQUENCE, STOPPED], CONSEQUENCE),
        ([SLOW, FAILED], FAILED),
        ([CONSEQUENCE, result(1, 1, tail=NCCL)], CONSEQUENCE),
        ([NOT_EXECUTED, STOPPED], NOT_EXECUTED),
        # It was failing when it was stopped, as its peer's consequence shows.
        ([CONSEQUENCE, SLOW], SLOW),
        ([CONSEQUENCE, STRUCK_LATE], STRUCK_LATE),
        ([CONSEQUENCE, IGNORED_AT_EXIT], CONSEQUENCE),
        # NCCL's watchdog ends its process with SIGABRT when a peer is lost.
        ([WATCHDOG, FAILED], FAILED),
        # Nothing failed by itself.
        ([], None),
        ([WELL], None),
        ([WELL, STOPPED], None),
        *(
            ([result(0, exit_status=exit_status, stopped_by_us=True)], None)
            for exit_status in OF_STOPPED
        ),
    ],
)
def test_choose_cause(
    results: Sequence[outcome.WorkerResult], cause: outcome.WorkerResult | None
) -> None:
    """First out of memory, then foreign signals, then own reasons; the earliest of equals."""
    assert choose_cause(results) is cause


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
        "http.client.RemoteDisconnected: Remote end closed connection without response",
        "http.client.IncompleteRead: IncompleteRead(0 bytes read, 12 more expected)",
        "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected",
        "httpx.RemoteProtocolError: Server disconnected without sending a response.",
        "httpx.ConnectError: All connection attempts failed",
        # It has no text of its own.
        "httpx.ReadError",
        "openai.APIConnectionError: Connection error.",
    ],
)
def test_failure_is_consequence(line: str) -> None:
    """Libraries print these messages when a peer is gone."""
    assert is_consequence(
        result(0, 1, tail=f"Traceback (most recent call last):\n{line}\n  more\n")
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
def test_failure_is_not_consequence(tail: str) -> None:
    """The worker failed for its own reason, or the message is old or was ignored."""
    assert not is_consequence(result(0, 1, tail=tail))


@pytest.mark.parametrize(
    ("reason", "ran_here"),
    [
        (outcome.WorkerFailed(FAILED), True),
        (outcome.WorkerFailed(STRUCK), False),
        (outcome.Succeeded(), False),
    ],
)
def test_cause_ran_here(reason: outcome.Reason, ran_here: bool) -> None:
    """A node has only the results of its own workers."""
    ended = outcome.Outcome(reason, attempt=0, results=(FAILED, STOPPED), survivors=())

    assert ended.cause_ran_here == ran_here
