"""Pods of HFAI and of PAI-DLC on two hosts: the platform's environment and no options."""

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from tests.captured import captured
from tests.contract.launched import Ended, Launcher
from tests.hosts.host import Host

ROOT = Path(__file__).parent.parent.parent

SECONDS_TO_TRAIN = 200.0

pytestmark = pytest.mark.timeout(240)

FEW = ("--epochs", "4")
"""Enough to show that it learns."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Both hosts have the processors of this machine."""

FORK_RANKS = """
    import os
    import torch
    import torch.distributed as dist

    def main(local_rank):
        ip = os.environ["MASTER_IP"]
        port = os.environ["MASTER_PORT"]
        hosts = int(os.environ["WORLD_SIZE"])
        rank = int(os.environ["RANK"])
        gpus = 2
        dist.init_process_group(
            backend="gloo",
            init_method=f"tcp://{ip}:{port}",
            world_size=hosts * gpus,
            rank=rank * gpus + local_rank,
        )
        total = torch.tensor([1.0 + dist.get_rank()])
        dist.all_reduce(total)
        # In one write: both processes of a machine print to one pipe.
        line = f"rank {dist.get_rank()} of {dist.get_world_size()} sum {int(total)}\\n"
        print(line, end="", flush=True)
        dist.destroy_process_group()

    if __name__ == "__main__":
        torch.multiprocessing.spawn(main, args=(), nprocs=2)
"""
"""As in HFAI's documentation: the machine's rank times its GPUs plus the process's own rank."""


def pods(
    clusterrun: Launcher, platform: str, hosts: Sequence[Host], *words: str, **changes: str
) -> list[Ended]:
    """Run the same command in a pod on each host; return how they ended."""
    jobs = [
        clusterrun.command(
            *words,
            around=host.around,
            environ=captured(f"{platform}.{number}", "platforms.txt") | ONE_THREAD | changes,
        )
        for number, host in enumerate(hosts)
    ]
    return [job.ended(SECONDS_TO_TRAIN) for job in jobs]


def hfai_variables(hosts: Sequence[Host]) -> dict[str, str]:
    """Return the variables of HFAI's start script: the address of the first machine."""
    return dict.fromkeys(("MASTER_IP", "MASTER_ADDR"), hosts[0].address)


def test_hfai_pods_train(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """RANK and WORLD_SIZE count machines."""
    script = str(ROOT / "scripts/train_digits.py")

    half = {"MARSV2_ASSIGNED_NUMA": "0"}
    ends = pods(clusterrun, "hfai", hosts[:2], script, *FEW, **hfai_variables(hosts), **half)

    assert [end.code for end in ends] == [0, 0], [end.err for end in ends]
    assert float(re.findall(r"test accuracy ([0-9.]+) %", ends[0].out)[0]) > 85


@pytest.mark.long
def test_hfai_script_that_forks_its_own_ranks(
    hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path
) -> None:
    """One worker on each machine forks the others, and is not bound."""
    script = tmp_path / "hfai.py"
    script.write_text(dedent(FORK_RANKS))
    flags = ("--nproc-per-node", "1", "--numa-binding", "none")

    ends = pods(clusterrun, "hfai", hosts[:2], *flags, str(script), **hfai_variables(hosts))

    assert [end.code for end in ends] == [0, 0], [end.err for end in ends]
    lines = sorted(line for end in ends for line in re.findall(r"rank \d of \d sum \d+", end.out))
    assert lines == [f"rank {rank} of 4 sum 10" for rank in range(4)]


@pytest.mark.long
@pytest.mark.parametrize(
    "script", ["scripts/train_digits.py", "tests/contract/in_place/programs/own_ddp.py"]
)
def test_dlc_pods_train(script: str, hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """With torch's DistributedDataParallel and with the program's own."""
    where = {"MASTER_ADDR": hosts[0].name, "NPROC_PER_NODE": "1"}

    few = FEW if "scripts" in script else ()
    ends = pods(clusterrun, "dlc", hosts[:2], str(ROOT / script), *few, **where)

    assert [end.code for end in ends] == [0, 0], [end.err for end in ends]
    assert float(re.findall(r"accuracy ([0-9.]+)", ends[0].out)[0]) > 85
