"""Train with DistributedDataParallel, and resume where the last run was suspended.

To resume, run ``clusterrun --nproc-per-node 2 scripts/train_resume.py --checkpoint run.pt`` again. On the same
number of ranks, the final weights are bit for bit those of a run that was never suspended; on another
number, each step still has the same samples. python and torchrun run it too.
"""

import argparse
import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from clusterrun import suspend
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, and go on where the last run ended.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a file that all nodes see")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=48, help="of all ranks together")
    parser.add_argument("--seed", type=int, default=0)
    options, device = parser.parse_args(), join()
    ranks_batch, left_over = divmod(options.batch_size, dist.get_world_size())
    if left_over:
        parser.error(f"--batch-size must be a multiple of the {dist.get_world_size()} ranks")
    torch.manual_seed(options.seed)
    inputs = torch.randn(1000, 16)
    data = TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True))
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    model = DistributedDataParallel(network.to(device))
    optimizer = torch.optim.AdamW(network.parameters())
    parts = {"network": network, "optimizer": optimizer}
    # DDP sorts its buckets anew after the first step, and sums of more than two ranks differ by it.
    model(inputs[:1].to(device)).sum().backward()
    samples = load(options.checkpoint, parts, options.seed)
    sampler = samples_of_this_rank(len(data), samples, options.seed)
    # With a generator of its own, the loader takes no number from the one that the model uses.
    loader = DataLoader(data, ranks_batch, sampler=sampler, generator=torch.Generator())
    steps = range(samples // options.batch_size, options.steps)
    for step, (batch, targets) in zip(steps, loader, strict=False):
        noisy = batch * np.random.choice([1, -1]) + random.gauss(0, 0.1)  # scripts draw so, too
        loss = nn.functional.mse_loss(model(noisy.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples += options.batch_size
        if suspend.requested(step):
            save(options.checkpoint, parts, samples)
            suspend.ready()
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    save(options.checkpoint, parts, samples)
    dist.destroy_process_group()


def join() -> torch.device:
    """Join the other ranks, if a launcher has started any; return the device of this rank."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update({**alone, **os.environ})
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    return device


def samples_of_this_rank(length: int, position: int, seed: int) -> Iterator[int]:
    """Yield indices, epoch after epoch; ``position`` counts the samples that all ranks have had."""
    epoch, order = -1, torch.empty(0)
    for number in itertools.count(position + dist.get_rank(), dist.get_world_size()):
        if number // length != epoch:
            epoch = number // length
            order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch))
        yield int(order[number % length])


def save(file: Path, parts: dict[str, Any], samples: int) -> None:
    """Let rank 0 replace the file by a new one, once that is whole on the disk."""
    mine = [torch.get_rng_state(), np.random.get_state(), random.getstate()]
    mine += [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    generators: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(generators, mine)
    if dist.get_rank() == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        with file.with_suffix(".new").open("wb") as new:
            torch.save({**state, "samples": samples, "generators": generators}, new)
            os.fsync(new.fileno())
        file.with_suffix(".new").replace(file)


def load(file: Path, parts: dict[str, Any], seed: int) -> int:
    """Load what was saved, if anything was; return how many samples all ranks have had."""
    saved: dict[str, Any] = {"samples": 0, "generators": []}
    if file.exists():
        saved = torch.load(file, map_location="cpu", weights_only=False)  # it holds numpy's state
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    for set_seed in (torch.manual_seed, np.random.seed, random.seed):
        set_seed(seed + saved["samples"] + dist.get_rank())  # unless each rank has a state
    if len(saved["generators"]) == dist.get_world_size():
        put = [torch.set_rng_state, np.random.set_state, random.setstate, torch.cuda.set_rng_state]
        for set_state, state in zip(put, saved["generators"][dist.get_rank()], strict=False):
            set_state(state)
    return int(saved["samples"])


if __name__ == "__main__":
    main()
