"""The job of bench_slow.py: ranks that train on CPUs until they are killed.

Which rank is slow, and why, is read from the plan in FOLDER in each step: see slow_plan.py.
"""

import mmap
import os
import random
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

import torch
import torch.distributed as dist
from slow_plan import BATCH, DATA_BYTES, READ_BYTES, Cause, Kind, Plan, StepCounter, data_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WIDTH, LAYERS = 256, 4

SAMPLES = 1_000_000
"""Of one epoch: about an hour of training. A sampler that shuffles keeps the index of each."""

LOADER_TIMES = 1.5
"""A slow loader takes so many times the delay for a batch: it works ahead while its rank computes."""

LIGHT_SECONDS = (0.03, 0.04)
"""What a step of a light rank sleeps."""

PROBED_ROWS, PROBES = 512, 3


def main() -> None:
    """Train until killed."""
    options = parse_options()
    torch.set_num_threads(1)
    rank = Rank(int(os.environ["RANK"]), options.folder, is_light=options.light)
    match options.kind:
        case Kind.DDP:
            train_ddp(rank)
        case Kind.FSDP2:
            train_fsdp2(rank)
        case Kind.LIGHTNING:
            train_lightning(rank)
        case Kind.HF:
            train_hf(rank)


def parse_options() -> Namespace:
    """Return the command line's options."""
    parser = ArgumentParser(description="Train with a slow rank.")
    parser.add_argument("kind", type=Kind)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--light", action="store_true", help="sleep in place of computing")
    return parser.parse_args()


class Rank:
    """What is planted in this rank, and how far it is."""

    def __init__(self, number: int, folder: Path, *, is_light: bool) -> None:
        self.number = number
        self.folder = folder
        self._is_light = is_light
        self._plan = Plan(Cause.HEALTHY)
        self._steps = StepCounter(number, folder)
        self._seconds_per_batch = seconds_per_batch()
        self._state = {f"layer{at}": torch.randn(WIDTH, WIDTH) for at in range(2 * LAYERS)}
        (folder / f"{number}.pid").write_text(f"{os.getpid()}")

    def begin_step(self) -> None:
        """Read the plan, and do what is planted before a step."""
        self._plan = Plan.of_rank(self.number, self.folder)
        self._steps.add()
        if self._plan.cause is Cause.SAVE:
            self._save()
        if self._is_light:
            time.sleep(random.uniform(*LIGHT_SECONDS))

    def batch(self, samples: Tensor) -> Tensor:
        """Return the samples of a step, or many times as many."""
        if self._plan.cause is not Cause.BATCH:
            return samples
        return samples.repeat(1 + round(self._plan.delay / self._seconds_per_batch), 1)

    def in_backward(self, *_: object) -> None:
        """Do what is planted in backward; as a hook of a layer."""
        if self._plan.cause is Cause.BACKWARD_SLEEP:
            time.sleep(self._plan.delay)
        if self._plan.cause is Cause.BACKWARD_BUSY:
            self._compute()

    def _save(self) -> None:
        until = time.monotonic() + self._plan.delay
        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            while time.monotonic() < until:
                torch.save(self._state, file.name)

    def _compute(self) -> None:
        until = time.thread_time() + self._plan.delay
        square = torch.randn(WIDTH // 2, WIDTH // 2)
        while time.thread_time() < until:
            square = torch.tanh(square @ square)

    def network(self) -> nn.Sequential:
        """Return the network, with the hook in its middle."""
        net = network()
        net[LAYERS - 1].register_full_backward_hook(self.in_backward)
        return net

    def loader(self) -> DataLoader[Tensor]:
        """Return the batches of this rank, which one other process makes."""
        return DataLoader(Samples(self), batch_size=BATCH, num_workers=1)


def network() -> nn.Sequential:
    """Return the network without a hook."""
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers)


def loss_of(outputs: Tensor) -> Tensor:
    """Return what is minimised."""
    return outputs.square().mean()


def seconds_per_batch() -> float:
    """Return the CPU time that forward and backward of one batch take more as part of a large one."""
    net, samples = network(), torch.randn(PROBED_ROWS, WIDTH)
    taken = []
    for _ in range(PROBES):
        start = time.thread_time()
        loss_of(net(samples)).backward()
        taken.append(time.thread_time() - start)
    return min(taken) * BATCH / PROBED_ROWS


class Samples(Dataset[Tensor]):
    """Random numbers, which take as long as the plan has it."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank.number
        self._folder = rank.folder
        self._served = 0
        self._has_data = data_file(rank.number, rank.folder).exists()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        plan = Plan.of_rank(self._rank, self._folder)
        if plan.cause is Cause.LOADER:
            time.sleep(plan.delay * LOADER_TIMES / BATCH)
        if self._has_data and self._served % BATCH == 0:
            self._read(self._served // BATCH)
        self._served += 1
        return torch.randn(WIDTH)

    def _read(self, number: int) -> None:
        """Read from the disk, past the page cache."""
        # Memory of its own: the kernel asks for whole blocks.
        memory = mmap.mmap(-1, READ_BYTES)
        file = os.open(data_file(self._rank, self._folder), os.O_RDONLY | os.O_DIRECT)
        try:
            os.preadv(file, [memory], number * READ_BYTES % DATA_BYTES)
        finally:
            os.close(file)


class NamedSamples(Dataset[dict[str, Tensor]]):
    """The same, by the name of an argument of ``TrainerModel.forward``."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"samples": self._samples[index]}


# The kinds of job.


def train_ddp(rank: Rank) -> None:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(rank.network())
    loop(rank, model)


def train_fsdp2(rank: Rank) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = rank.network()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    loop(rank, net)


def loop(rank: Rank, model: nn.Module) -> None:
    """Train a model by a loop as most scripts have one."""
    optimizer = torch.optim.AdamW(model.parameters())
    for samples in rank.loader():
        rank.begin_step()
        optimizer.zero_grad()
        loss_of(model(rank.batch(samples))).backward()
        optimizer.step()


def train_lightning(rank: Rank) -> None:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = rank.network()

        def on_train_batch_start(self, *_: object) -> None:
            rank.begin_step()

        def training_step(self, samples: Tensor) -> Tensor:
            return loss_of(self.net(rank.batch(samples)))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(Module(), rank.loader())


class TrainerModel(nn.Module):
    """A model that returns its loss, as the Trainer of transformers expects it."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.net = rank.network()
        self._rank = rank

    def forward(self, samples: Tensor) -> dict[str, Tensor]:
        self._rank.begin_step()
        return {"loss": loss_of(self.net(self._rank.batch(samples)))}


def train_hf(rank: Rank) -> None:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(rank.folder),
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=1 << 40,
        per_device_train_batch_size=BATCH,
        dataloader_num_workers=1,
        dataloader_persistent_workers=True,
        remove_unused_columns=False,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    dataset = NamedSamples(Samples(rank))
    Trainer(model=TrainerModel(rank), args=arguments, train_dataset=dataset).train()


if __name__ == "__main__":
    main()
