"""The client of NCCL's RAS, against a double of its server."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import pytest
from free_ports import free_port
from msgspec.structs import replace

from tests.plans import gpu, worker_of
from tests.workers.door import (
    AskedChild,
    NcclRanks,
    NcclSilence,
    NcclState,
    NcclText,
    RasLimits,
    WorkerPlan,
    ask_nccl,
    findings,
    maps_libnccl,
    nccl_answer,
    ras_addresses,
)
from tests.workers.fake_nccl_ras import Behaviour, FakeRank, job, serving

QUICK = RasLimits(silence=0.3, between=0.01, report=0.8)
PIDS = {0: {100 + n: n for n in range(4)}, 1: {100 + n: n for n in range(4, 8)}}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def why(state: NcclState) -> str:
    assert isinstance(state.answer, NcclSilence)
    return state.answer.why


@pytest.mark.parametrize("version", ["2.28.7", "2.28.9", "2.29.2", "2.30.7"])
def test_a_rank_behind_and_a_missing_one_are_found(version: str) -> None:
    """Also where NCCL's JSON lacks a comma."""
    ranks = job()
    ranks[7].counts = {"AllReduce": 1203}
    ranks[2].is_missing = True
    with serving(ranks, version) as server:
        state = ask_nccl([server.address], limits=QUICK)

    assert server.lines[:4] == ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "STATUS"]
    assert server.queries == 2
    assert state.is_mapped
    assert findings(state, PIDS) == (
        "rank 2 does not answer NCCL",
        (
            "ranks 0-1, 3-6 launched AllReduce 1204 times, rank 7 1203: rank 7 has not launched it"
            " (communicator 0xae94423cfbb2ef4a of 8 ranks)"
        ),
    )


@pytest.mark.parametrize("version", ["2.24.3", "2.27.5", "2.28.3"])
def test_an_older_version_answers_with_text(version: str) -> None:
    with serving(job(), version) as server:
        state = ask_nccl([server.address], limits=QUICK)

    assert server.lines[-1] == "VERBOSE STATUS"
    assert isinstance(state.answer, NcclText)
    assert state.answer.version == f"{version}+cuda12.9"
    assert state.answer.text.startswith("Errors\n======\n\nWarnings\n")


def test_counts_that_change_between_the_queries() -> None:
    ranks = job()

    def launch(_: int) -> None:
        ranks[0].counts = {"AllReduce": ranks[0].counts["AllReduce"] + 1}

    with serving(ranks, before_report=launch) as server:
        state = ask_nccl([server.address], limits=QUICK)

    assert state.answer == NcclRanks(total=1, moving=1)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour.SILENT, "does not answer"),
        (Behaviour.SILENT_AFTER_GREETING, "does not answer"),
        (Behaviour.CUT_OFF, "has sent half a report, or another than expected"),
        (Behaviour.HTTP, "is not NCCL: 'HTTP/1.1 400 Bad Request'"),
        (Behaviour.ENDLESS_LINE, "is not NCCL, or has ended"),
        (Behaviour.CLOSES, "is not NCCL, or has ended"),
    ],
)
def test_the_next_process_is_asked(behaviour: Behaviour, reason: str, stack: ExitStack) -> None:
    """With none left, the reason is named."""
    bad = stack.enter_context(serving(job(), behaviour=behaviour))
    good = stack.enter_context(serving(job()))

    assert ask_nccl([bad.address, good.address], limits=QUICK).answer == NcclRanks(total=1)
    assert reason in why(ask_nccl([bad.address], limits=QUICK))


def test_a_late_report_is_not_waited_for_and_no_other_process_asked(stack: ExitStack) -> None:
    """Another one would collect the same."""
    late = stack.enter_context(serving(job(), behaviour=Behaviour.SLOW))
    good = stack.enter_context(serving(job()))
    began = time.monotonic()

    state = ask_nccl([late.address, good.address], limits=QUICK)

    assert why(state) == f"{late.address} has not sent its report in 0.8 s"
    assert time.monotonic() - began < 5
    assert good.queries == 0


def test_too_long_a_report_is_not_read() -> None:
    with serving(job(64)) as server:
        state = ask_nccl([server.address], limits=replace(QUICK, most_bytes=10_000))

    assert "sends more than 0 MiB" in why(state)


def test_at_most_three_processes_are_asked(stack: ExitStack) -> None:
    servers = [stack.enter_context(serving(job(), behaviour=Behaviour.HTTP)) for _ in range(4)]

    state = ask_nccl([each.address for each in servers], limits=QUICK)

    assert [bool(each.lines) for each in servers] == [True, True, True, False]
    assert why(state).count("is not NCCL") == 3


def test_refused_and_impossible_addresses() -> None:
    closed = f"127.0.0.1:{free_port()}"
    reasons = why(ask_nccl([closed, "nonsense", "localhost:70000"], limits=QUICK))

    assert reasons == (
        f"{closed} does not answer: Connection refused;"
        " nonsense is not an address like 127.0.0.1:28028;"
        " localhost:70000 is not an address like 127.0.0.1:28028"
    )


def test_nothing_to_ask() -> None:
    assert why(ask_nccl([], limits=QUICK)) == "NCCL_RAS_ENABLE switches that off"


def test_an_ipv6_address() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        listener.listen()
        address = f"[::1]:{listener.getsockname()[1]}"
        reason = why(ask_nccl([address], limits=QUICK))

    assert reason == f"{address} does not answer"


def test_4096_ranks_fit_into_a_message_and_are_read_quickly() -> None:
    """All processes travel, so that hosts are recognised, and both groups of ranks."""
    ranks = [
        FakeRank(f"10.0.{n // 2048}.{n // 8 % 256}", 1000 + n, {"AllReduce": 5})
        for n in range(4096)
    ]
    ranks[4000].counts = {"AllReduce": 4}
    pids = {node: {1000 + n: n for n in range(8 * node, 8 * node + 8)} for node in range(512)}
    with serving(ranks) as server:
        assert len(server.json()) > 2_000_000
        body = nccl_answer([server.address], ())

    assert len(body) < 1 << 16
    (line,) = findings(msgspec.msgpack.decode(body, type=NcclState), pids)
    assert line.startswith("ranks 0-3999, 4001-4095 launched AllReduce 5 times, rank 4000 4")


def test_an_agents_child_asks() -> None:
    """As the agent does: in a process of its own, whose answer comes through a pipe."""
    with serving(job()) as server:
        child = AskedChild(partial(nccl_answer, [server.address], [os.getpid()]), 20)
        body = child.wait()

    state = msgspec.msgpack.decode(body, type=NcclState)
    assert state == NcclState(NcclRanks(total=1), is_mapped=True)


def test_a_process_that_has_loaded_libnccl(tmp_path: Path) -> None:
    """Any mapped file of that name counts."""
    code = (
        "import mmap, sys; file = open(sys.argv[1], 'rb');"
        " kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); print('mapped', flush=True);"
        " sys.stdin.read()"
    )
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"x")
    with subprocess.Popen(
        [sys.executable, "-c", code, library], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"mapped\n"
        silence = ask_nccl([], [os.getpid(), process.pid])
        process.communicate(timeout=20)

    assert silence.is_mapped
    assert not maps_libnccl(os.getpid())
    assert not maps_libnccl(process.pid)


def worker(local_rank: int, **env: str) -> WorkerPlan:
    return replace(worker_of(local_rank, env=env), gpus=(gpu(local_rank, 0),))


@pytest.mark.parametrize(
    ("workers", "environment", "expected"),
    [
        (
            [worker(n, NCCL_RAS_ADDR=f"127.0.0.1:{4000 + n}") for n in range(4)],
            {},
            ("127.0.0.1:4000", "127.0.0.1:4001", "127.0.0.1:4002"),
        ),
        ([worker(0), worker(1)], {}, ("localhost:28028",)),
        ([worker(0), worker(1)], {"NCCL_RAS_ADDR": "10.0.0.1:9"}, ("10.0.0.1:9",)),
        ([worker(0)], {"NCCL_RAS_ENABLE": "0"}, ()),
        ([worker(0, NCCL_RAS_ENABLE="0"), worker(1)], {}, ("localhost:28028",)),
        ([], {}, ()),
    ],
)
def test_where_nccl_is_asked(
    workers: list[WorkerPlan], environment: dict[str, str], expected: tuple[str, ...]
) -> None:
    """At the first three workers; they share the user's address or NCCL's default."""
    assert ras_addresses(workers, environment) == expected
