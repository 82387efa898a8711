"""Train a small network on scikit-learn's handwritten digits: plain DistributedDataParallel.

Nothing here knows its launcher. Ranks and addresses come from the environment (``env://``), so it
runs under anything that sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

Batches = DataLoader[tuple[torch.Tensor, ...]]


def main() -> None:
    """Train, then say how many of the unseen digits are read rightly."""
    options = parse_options()
    device = join()
    torch.manual_seed(options.seed)
    train, test = digits(options.seed)
    model = DistributedDataParallel(network().to(device))
    loader = training_loader(train, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    for epoch in range(1, options.epochs + 1):
        began = time.monotonic()
        loss = train_epoch(model, loader, optimizer, epoch, device)
        speed = len(train) / (time.monotonic() - began)
        say(f"epoch {epoch}/{options.epochs} loss {loss:.4f}, {speed:.0f} images/s")
    say(f"test accuracy {100 * accuracy(model, test, device):.1f} %")
    dist.destroy_process_group()


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="Train on the UCI handwritten digits.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def join() -> torch.device:
    """Join the other ranks; return the device of this one."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Return 1,437 images of 8x8 pixels to learn from and 360 to be tested on."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=seed)
    train_images, test_images, train_labels, test_labels = split
    return dataset(train_images, train_labels), dataset(test_images, test_labels)


def dataset(images: object, labels: object) -> TensorDataset:
    """Return images of one channel, 0 to 1, with their labels."""
    pixels = torch.as_tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return TensorDataset(pixels, torch.as_tensor(labels, dtype=torch.long))


def network() -> nn.Module:
    """Return two small convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def training_loader(train: TensorDataset, options: argparse.Namespace) -> Batches:
    """Return this rank's share; the batch of all ranks together has always the same size."""
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        train, seed=options.seed
    )
    return DataLoader(
        train,
        batch_size=max(1, options.batch_size // dist.get_world_size()),
        sampler=sampler,
        num_workers=2,
        persistent_workers=True,
    )


def train_epoch(
    model: nn.Module,
    loader: Batches,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    device: torch.device,
) -> float:
    """Go through the data once; return the mean loss over all ranks."""
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)
    total = torch.zeros(2, device=device)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += torch.stack([loss.detach(), torch.ones_like(loss)])
    return ratio_over_all_ranks(total)


@torch.no_grad()
def accuracy(model: DistributedDataParallel, test: TensorDataset, device: torch.device) -> float:
    """Return the share of ``test`` that is classified correctly; each rank evaluates its own part."""
    mine = Subset(test, range(dist.get_rank(), len(test), dist.get_world_size()))
    total = torch.zeros(2, device=device)
    for images, labels in DataLoader(mine, batch_size=256):
        # The bare module: a forward pass through DDP may wait for ranks that have fewer batches.
        right = model.module(images.to(device)).argmax(dim=1) == labels.to(device)
        total += torch.tensor([right.sum(), right.numel()], device=device)
    return ratio_over_all_ranks(total)


def ratio_over_all_ranks(total: Tensor) -> float:
    """Return sum / count of ``total``, [sum, count], added up over all ranks."""
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def say(text: str) -> None:
    """Print ``text`` once for the whole job."""
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
