"""What PyTorch's own tests of torchrun describe (test/distributed/launcher/test_run.py)."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from free_ports import free_port

from tests.contract.launched import Ended, Launcher

TOUCHES = """
    import os, pathlib, sys
    pathlib.Path(sys.argv[1], os.environ["RANK"]).touch()
    if "--fail" in sys.argv:
        raise RuntimeError("as asked")
"""

TOUCHES_IN_BASH = """#!/usr/bin/env bash
echo "creating $1/$RANK"
touch "$1/$RANK"
"""

INITIALISES = """
    import os, sys
    import torch, torch.distributed as dist
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=size)
    total = torch.tensor([1])
    dist.all_reduce(total)
    assert total.item() == size
    print("launched", dist.is_torchelastic_launched())
    dist.destroy_process_group()
"""

USUAL = ("--monitor-interval=1", "--start-method=spawn")


@pytest.fixture
def touched(tmp_path: Path) -> Path:
    """Return the folder where each worker creates a file named after its rank."""
    folder = tmp_path / "touched"
    folder.mkdir()
    return folder


@pytest.fixture
def bash_script(tmp_path: Path) -> str:
    """Return a program that is not written in Python."""
    script = tmp_path / "touch.sh"
    script.write_text(TOUCHES_IN_BASH)
    script.chmod(0o755)
    return str(script)


def ranks(touched: Path) -> set[int]:
    """Return the ranks that have run."""
    return {int(file.name) for file in touched.iterdir()}


@pytest.mark.parametrize(
    "options",
    [
        ("--nnodes=1", "--nproc-per-node=4", "--rdzv-id=7"),
        ("--nnodes=1", "--nproc-per-node=4", "--standalone"),
        ("--nnodes=1", "--nproc-per-node=4", "--run-path"),
        ("--nproc-per-node=4", "--master-addr=localhost", "--master-port=0", "--node-rank=0"),
        ("--nproc-per-node=4", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"),
    ],
)
def test_each_rank_touches_its_file(
    torchrun: Launcher, touched: Path, options: tuple[str, ...]
) -> None:
    """One node with four workers, in each notation."""
    ended = torchrun.script(TOUCHES, *options, *USUAL, args=(str(touched),)).ended()

    assert ended.code == 0, ended.err
    assert ranks(touched) == {0, 1, 2, 3}


def test_torchruns_third_start_method(torchrun: Launcher, touched: Path) -> None:
    options = ("--nproc-per-node=2", "--start-method=forkserver")
    ended = torchrun.script(TOUCHES, *options, args=(str(touched),)).ended()

    assert (ended.code, ended.err) == (0, "")
    assert ranks(touched) == {0, 1}


@pytest.mark.parametrize(
    ("options", "count"),
    [((), 1), (("--nproc-per-node=4",), 4), (("--nproc-per-node=auto",), None)],
)
def test_programs_that_are_not_python(
    torchrun: Launcher, touched: Path, bash_script: str, options: tuple[str, ...], count: int | None
) -> None:
    """One worker by default, a given number, or one per CPU where there is no GPU."""
    ended = torchrun.command(*options, *USUAL, "--no-python", bash_script, str(touched)).ended()

    assert ended.code == 0, ended.err
    assert len(ranks(touched)) == (count or len(os.sched_getaffinity(0)))


def by_variables(torchrun: Launcher, script: str, touched: Path, more: Mapping[str, str]) -> Ended:
    """Return how a launch ended that is described by variables only."""
    variables = {
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": "4",
        "PET_RDZV_ID": "7",
        "PET_MONITOR_INTERVAL": "1",
        "PET_START_METHOD": "spawn",
        "PET_NO_PYTHON": "1",
    }
    return torchrun.command(script, str(touched), environ={**variables, **more}).ended()


def test_variables_in_place_of_flags(torchrun: Launcher, touched: Path, bash_script: str) -> None:
    """PET_MODULE=0 is like no variable; PET_MODULE=1 contradicts PET_NO_PYTHON=1."""
    refused = by_variables(torchrun, bash_script, touched, {"PET_MODULE": "1"})
    ended = by_variables(torchrun, bash_script, touched, {"PET_MODULE": "0"})

    assert refused.code == 2
    assert ended.code == 0, ended.err
    assert ranks(touched) == {0, 1, 2, 3}


@pytest.mark.parametrize("method", [pytest.param("tcp", marks=pytest.mark.long), "env"])
def test_process_groups(torchrun: Launcher, method: str) -> None:
    """By ``tcp://`` at the given port, by ``env://``; torch detects its launcher."""
    port = free_port()
    where = f"tcp://localhost:{port}" if method == "tcp" else "env://"

    ended = torchrun.script(
        INITIALISES,
        *("--run-path", "--nnodes=1", "--nproc-per-node=2"),
        *("--master-addr=localhost", f"--master-port={port}"),
        args=(where,),
    ).ended()

    assert ended.code == 0, ended.err
    assert ended.out.count("launched True\n") == 2


@pytest.mark.parametrize(
    "options",
    [
        ("--nnodes=2", "--rdzv-id=7"),
        pytest.param(("--nnodes=1:2", "--rdzv-conf=last_call_timeout=600"), id="the maximum"),
    ],
)
def test_several_agents_on_one_host(
    torchrun: Launcher, touched: Path, options: tuple[str, ...]
) -> None:
    """They meet at the endpoint, and each runs its own ranks; of the maximum there is no last call."""
    place = ("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}")
    words = (*options, "--nproc-per-node=2", *place)

    jobs = [torchrun.script(TOUCHES, *words, args=(str(touched),)) for _ in range(2)]
    ended = [job.ended() for job in jobs]

    assert [each.code for each in ended] == [0, 0], [each.err for each in ended]
    assert ranks(touched) == {0, 1, 2, 3}


def test_fewer_agents_than_the_maximum(torchrun: Launcher, touched: Path) -> None:
    """At the last call, made short by torchrun's setting, the job begins with one node of two."""
    ended = torchrun.script(
        TOUCHES,
        *("--nnodes=1:2", "--nproc-per-node=2", "--rdzv-backend=c10d"),
        f"--rdzv-endpoint=localhost:{free_port()}",
        "--rdzv-conf=join_timeout=30,last_call_timeout=1,timeout=30",
        args=(str(touched),),
    ).ended()

    assert ended.code == 0, ended.err
    assert "starting with 1 of 2 nodes" in ended.err
    assert ranks(touched) == {0, 1}


def test_an_agent_that_joins_too_late(torchrun: Launcher, touched: Path) -> None:
    """It waits for a place, which the next attempt would have, and ends with the job."""
    options = (
        *("--nnodes=1:3", "--nproc-per-node=1", "--rdzv-backend=c10d"),
        *(f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-conf=last_call_timeout=0.5"),
    )
    waits = """
        import os, pathlib, sys, time
        print("world of", os.environ["WORLD_SIZE"], os.environ["GROUP_WORLD_SIZE"], flush=True)
        while not pathlib.Path(sys.argv[1], "end").exists():
            time.sleep(0.05)
    """
    first = torchrun.script(waits, *options, args=(str(touched),))
    first.wait_for("world of 1 1")

    late = torchrun.script(waits, *options, args=(str(touched),))
    late.wait_for("this node is waiting to join")
    (touched / "end").touch()

    assert [job.ended().code for job in (first, late)] == [0, 0], late.err
