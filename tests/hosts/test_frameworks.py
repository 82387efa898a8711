"""Unmodified frameworks: their support of torchrun is enough."""

import re

import pytest

from tests.contract.launched import Job, Launcher
from tests.hosts.host import Host
from tests.hosts.slurm import Slurm

SECONDS_TO_TRAIN = 100.0
"""Most of it is the import of the frameworks, once on each node."""

ON_CPUS = {"ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
"""Without the first, each rank would be a job of one process if there is no GPU."""

TRAIN = """
import os
import lightning, torch
from torch.utils.data import DataLoader, TensorDataset

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    max_steps=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Line(), DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=1))
kind = type(trainer.strategy.cluster_environment).__name__
print(kind, trainer.global_rank, "of", trainer.world_size, "steps", trainer.global_step, flush=True)
"""

accelerate_scripts = pytest.mark.parametrize("name", ["test_script", "test_sync", "test_ops"])


def module_of(name: str) -> tuple[str, str]:
    """Return the arguments that run one of accelerate's own test scripts."""
    return "-m", f"accelerate.test_utils.scripts.{name}"


def expect_success(*jobs: Job) -> None:
    """Wait until all nodes of a job have ended; check that they exited with 0."""
    ends = [job.ended(SECONDS_TO_TRAIN) for job in jobs]

    assert [end.code for end in ends] == [0] * len(jobs), [end.err for end in ends]


def trained(*jobs: Job) -> list[str]:
    """Return what each rank of a job with the script ``TRAIN`` printed last."""
    expect_success(*jobs)
    return sorted(line for job in jobs for line in re.findall(r"\w+ \d+ of \d+ steps \d+", job.out))


def ranks_of(size: int) -> list[str]:
    """Return what ranks print if Lightning uses the ranks that it was given."""
    return [f"TorchElasticEnvironment {rank} of {size} steps 2" for rank in range(size)]


@pytest.mark.long
@accelerate_scripts
def test_accelerate_passes_its_own_tests_on_two_hosts(
    hosts: tuple[Host, ...], clusterrun: Launcher, name: str
) -> None:
    rendezvous = ("--nnodes", "2", "--master-addr", hosts[0].name)

    jobs = [
        clusterrun.command(*rendezvous, *module_of(name), around=host.around, environ=ON_CPUS)
        for host in hosts[:2]
    ]

    expect_success(*jobs)


@pytest.mark.long
def test_lightning_uses_our_ranks_on_two_hosts(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    rendezvous = ("--nnodes", "2", "--master-addr", hosts[0].name)

    jobs = [clusterrun.script(TRAIN, *rendezvous, around=host.around) for host in hosts[:2]]

    assert trained(*jobs) == ranks_of(2)


@pytest.mark.parametrize(
    "layout",
    [
        ("-N1", "-n1", "-c2", "--gres=gpu:2"),
        pytest.param(("-N2", "-n2", "--gpus-per-task=1"), marks=pytest.mark.long),
    ],
    ids=["per-node", "per-gpu"],
)
def test_lightning_uses_our_ranks_inside_slurm(
    slurm: Slurm, clusterrun: Launcher, layout: tuple[str, ...]
) -> None:
    """It ignores Slurm's variables, which count tasks and not workers."""
    job = clusterrun.script(TRAIN, around=slurm.around(*layout))

    assert trained(job) == ranks_of(2)
