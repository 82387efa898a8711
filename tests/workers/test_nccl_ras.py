"""The client of NCCL's RAS, against a fake server."""

import mmap
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from clusterrun.bounds import named_ranks
from clusterrun.planning.plan import WorkerPlan
from clusterrun.policy.nccl import NcclState, NcclWorld
from clusterrun.workers.nccl_ras import RasLimits, ask_nccl, ras_addresses
from free_ports import free_port
from msgspec.structs import replace

from tests.plans import gpu, worker_of
from tests.workers.fake_nccl_ras import Behaviour, job, serving

QUICK = RasLimits(silence=1.5, between=0.01, seconds=10)

WORLD = NcclWorld(size=8, first=0, named=named_ranks, pids={os.getpid(): 0})


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def libnccl(tmp_path: Path) -> Iterator[None]:
    """Map a file of that name into this process."""
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"x")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        yield


def why(*addresses: str, limits: RasLimits = QUICK) -> str:
    """Return the reason that is given if no process answers."""
    state = ask_nccl(addresses, WORLD, limits)
    (line,) = state.lines
    what, _, reason = line.partition(": ")
    assert what == "NCCL does not report what the ranks have launched"
    assert state == NcclState((line,))
    return reason


@pytest.mark.parametrize("version", ["2.28.7", "2.28.9", "2.29.2", "2.30.7"])
def test_rank_behind_and_missing_rank_are_found(version: str) -> None:
    """Also where NCCL's JSON lacks a comma."""
    ranks = job()
    ranks[7].counts = {"AllReduce": 1203}
    ranks[2].is_missing = True
    with serving(ranks, version) as server:
        state = ask_nccl([server.address], WORLD, QUICK)

    assert server.lines[:4] == ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "STATUS"]
    assert server.queries == 2
    assert state.behind == (7,)
    assert state.lines == (
        "NCCL gets no answer from rank 2",
        (
            "communicator 0xae94423cfbb2ef4a of 8 ranks: ranks 0-1, 3-6 launched AllReduce 1204 times;"
            " behind: rank 7 launched AllReduce 1203 times"
        ),
    )


@pytest.mark.parametrize("version", ["2.24.3", "2.27.5", "2.28.3"])
def test_older_version_answers_with_text(version: str) -> None:
    with serving(job(), version) as server:
        state = ask_nccl([server.address], WORLD, QUICK)

    assert server.lines[-1] == "VERBOSE STATUS"
    assert server.queries == 1
    assert state.lines[:3] == (f"NCCL {version}+cuda12.9 reports:", "Errors", "======")


def test_counts_that_change_between_queries() -> None:
    ranks = job()
    with serving(ranks) as server:
        server.after_report = lambda: setattr(ranks[3], "counts", {"AllReduce": 1205})
        state = ask_nccl([server.address], WORLD, QUICK)

    assert state.lines == ("collectives are still launched by rank 3",)


@pytest.mark.usefixtures("libnccl")
@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour.SILENT, "does not answer in time"),
        (Behaviour.CUT_OFF, "has sent an incomplete or unexpected report"),
        (Behaviour.HTTP, "is not NCCL: 'HTTP/1.1 400 Bad Request'"),
        (Behaviour.ENDLESS_LINE, "is not NCCL, or has ended"),
        (Behaviour.CLOSES, "is not NCCL, or has ended"),
    ],
)
def test_next_process_is_queried(behaviour: Behaviour, reason: str, stack: ExitStack) -> None:
    """Without another process, the reason is returned."""
    bad = stack.enter_context(serving(job(), behaviour=behaviour))
    good = stack.enter_context(serving(job()))

    assert ask_nccl([bad.address, good.address], WORLD, QUICK).lines[0].startswith("all ranks have")
    assert why(bad.address) == f"{bad.address} {reason}"


@pytest.mark.usefixtures("libnccl")
def test_late_report_times_out() -> None:
    began = time.monotonic()
    with serving(job(), behaviour=Behaviour.SLOW) as late:
        reason = why(late.address, limits=replace(QUICK, seconds=0.8))
        elapsed = time.monotonic() - began

    assert reason == f"{late.address} does not answer in time"
    assert 0.8 <= elapsed < 5


@pytest.mark.usefixtures("libnccl")
def test_at_most_three_processes_are_tried(stack: ExitStack) -> None:
    fourth = stack.enter_context(serving(job()))
    closed = f"127.0.0.1:{free_port()}"

    assert why(closed, "nonsense", "localhost:70000", fourth.address) == (
        f"{closed} does not answer: Connection refused;"
        " nonsense is not an address like 127.0.0.1:28028;"
        " localhost:70000 is not an address like 127.0.0.1:28028"
    )
    assert why() == "NCCL_RAS_ENABLE switches that off"


@pytest.mark.usefixtures("libnccl")
def test_ipv6_address() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        address = f"[::1]:{listener.getsockname()[1]}"

        reason = why(address, limits=replace(QUICK, silence=0.1))

    assert reason == f"{address} does not answer in time"


def test_no_line_without_libnccl() -> None:
    ended = replace(WORLD, pids={os.getpid(): 0, 1 << 30: 1})

    assert ask_nccl([], ended, QUICK) == NcclState()


@pytest.mark.usefixtures("libnccl")
def test_report_of_megabytes() -> None:
    """Of 4,096 ranks; the size is limited."""
    ranks = job(4096)
    ranks[4000].counts = {"AllReduce": 4}
    with serving(ranks) as server:
        assert len(server.json()) > 1_500_000
        state = ask_nccl([server.address], replace(WORLD, size=4096), replace(QUICK, seconds=60))
        reason = why(server.address, limits=replace(QUICK, max_bytes=1 << 20))

    assert state.behind == (4000,)
    assert reason == f"{server.address} sends more than 1 MiB"


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
def test_addresses_of_workers(
    workers: list[WorkerPlan], environment: dict[str, str], expected: tuple[str, ...]
) -> None:
    """Of the first three workers; they share the user's address or NCCL's default."""
    assert ras_addresses(workers, environment) == expected
