"""The cases of PyTorch's own tests of torchrun (test/distributed/launcher/test_run.py)."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from free_ports import free_port

from tests.contract.launched import Ended, Launcher

TOUCH = """
    import os, pathlib, sys
    pathlib.Path(sys.argv[1], os.environ["RANK"]).touch()
    if "--fail" in sys.argv:
        raise RuntimeError("as asked")
"""

TOUCH_IN_BASH = """#!/usr/bin/env bash
echo "creating $1/$RANK"
touch "$1/$RANK"
"""

ALL_REDUCE = """
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

IGNORED_OPTIONS = ("--monitor-interval=1", "--start-method=spawn")


@pytest.fixture
def touched(tmp_path: Path) -> Path:
    """Return the folder where each worker creates a file named by its rank."""
    folder = tmp_path / "touched"
    folder.mkdir()
    return folder


@pytest.fixture
def bash_script(tmp_path: Path) -> str:
    """Return the path of a bash script that does the same."""
    script = tmp_path / "touch.sh"
    script.write_text(TOUCH_IN_BASH)
    script.chmod(0o755)
    return str(script)


def ranks(touched: Path) -> set[int]:
    """Return the ranks of the workers that ran."""
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
def test_one_node_with_four_workers(
    torchrun: Launcher, touched: Path, options: tuple[str, ...]
) -> None:
    ended = torchrun.script(TOUCH, *options, *IGNORED_OPTIONS, args=(str(touched),)).ended()

    assert ended.code == 0, ended.err
    assert ranks(touched) == {0, 1, 2, 3}


def test_start_method_forkserver(torchrun: Launcher, touched: Path) -> None:
    options = ("--nproc-per-node=2", "--start-method=forkserver")
    ended = torchrun.script(TOUCH, *options, args=(str(touched),)).ended()

    assert (ended.code, ended.err) == (0, "")
    assert ranks(touched) == {0, 1}


@pytest.mark.parametrize(
    ("options", "count"),
    [((), 1), (("--nproc-per-node=4",), 4), (("--nproc-per-node=auto",), None)],
)
def test_no_python(
    torchrun: Launcher, touched: Path, bash_script: str, options: tuple[str, ...], count: int | None
) -> None:
    """One worker by default, a given number, or one per CPU without GPUs."""
    ended = torchrun.command(
        *options, *IGNORED_OPTIONS, "--no-python", bash_script, str(touched)
    ).ended()

    assert ended.code == 0, ended.err
    assert len(ranks(touched)) == (count or len(os.sched_getaffinity(0)))


def run_by_variables(
    torchrun: Launcher, script: str, touched: Path, more: Mapping[str, str]
) -> Ended:
    """Return the result of a launch that is described only by variables."""
    variables = {
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": "4",
        "PET_RDZV_ID": "7",
        "PET_MONITOR_INTERVAL": "1",
        "PET_START_METHOD": "spawn",
        "PET_NO_PYTHON": "1",
    }
    return torchrun.command(script, str(touched), environ={**variables, **more}).ended()


def test_pet_variables_instead_of_flags(
    torchrun: Launcher, touched: Path, bash_script: str
) -> None:
    """PET_MODULE=0 counts as unset; PET_MODULE=1 conflicts with PET_NO_PYTHON=1."""
    refused = run_by_variables(torchrun, bash_script, touched, {"PET_MODULE": "1"})
    ended = run_by_variables(torchrun, bash_script, touched, {"PET_MODULE": "0"})

    assert refused.code == 2
    assert ended.code == 0, ended.err
    assert ranks(touched) == {0, 1, 2, 3}


@pytest.mark.parametrize("method", [pytest.param("tcp", marks=pytest.mark.long), "env"])
def test_init_process_group(torchrun: Launcher, method: str) -> None:
    """By ``tcp://`` with the given port, and by ``env://``; torch detects its launcher."""
    port = free_port()
    where = f"tcp://localhost:{port}" if method == "tcp" else "env://"

    ended = torchrun.script(
        ALL_REDUCE,
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
def test_two_agents_on_one_host(
    torchrun: Launcher, touched: Path, options: tuple[str, ...]
) -> None:
    """With the maximum of nodes, the job does not wait for the last call."""
    place = ("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}")
    words = (*options, "--nproc-per-node=2", *place)

    jobs = [torchrun.script(TOUCH, *words, args=(str(touched),)) for _ in range(2)]
    ended = [job.ended() for job in jobs]

    assert [each.code for each in ended] == [0, 0], [each.err for each in ended]
    assert ranks(touched) == {0, 1, 2, 3}


def test_job_starts_with_the_minimum_after_the_last_call(torchrun: Launcher, touched: Path) -> None:
    ended = torchrun.script(
        TOUCH,
        *("--nnodes=1:2", "--nproc-per-node=2", "--rdzv-backend=c10d"),
        f"--rdzv-endpoint=localhost:{free_port()}",
        "--rdzv-conf=join_timeout=30,last_call_timeout=1,timeout=30",
        args=(str(touched),),
    ).ended()

    assert ended.code == 0, ended.err
    assert "starting with 1 of 2 nodes" in ended.err
    assert ranks(touched) == {0, 1}


def test_late_agent_waits_until_the_job_ends(torchrun: Launcher, touched: Path) -> None:
    """The next attempt would include it."""
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
