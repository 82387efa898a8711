"""A child of the program on each node: what may crash or hang in torch does so here.

``torch`` imports it and multiplies; ``links`` sends data to the other nodes and adds up with them.
Each prints one line of JSON.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from clusterrun.bounds import Count, Line, Name, Size, Text, as_line, as_text

SECONDS_TO_MULTIPLY = 0.4
CPU_ROWS = 384
"""A product of a few milliseconds, so that one of many is not interrupted by other processes."""
GPU_ROWS = 4096

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 16 * MIB)
GPU_SIZES = (*SIZES, 256 * MIB)
"""Bytes that are added up."""
SENT = 8 * MIB
"""Bytes that the two nodes of a link send each other."""

ROUNDS = 4
"""The first one is not measured."""
SECONDS_TOO_LONG = 1.5
"""A size that is expected to take longer is left out."""

SECONDS_FOR_TORCH = 15.0

STORE_PREFIX = "links"


class Product(Struct, frozen=True):
    """A matrix product on one device."""

    device: Name
    """``CPU``, ``GPU 0``."""
    gigaflops: float


class TorchFacts(Struct, frozen=True):
    """What torch can do on a node."""

    nccl: Name = ""
    """Its version; "" if torch has no GPU here."""
    gpus: Count = 0
    products: tuple[Product, ...] = ()
    fault: Line = ""
    """What torch says of the first device that can't multiply."""


class AllReduce(Struct, frozen=True):
    """An all_reduce of one size among all nodes."""

    size: Size
    """Bytes."""
    seconds: float
    """The best of several, on the slowest node."""


class NetworkSpeeds(Struct, frozen=True):
    """What one node has measured with the others."""

    links: tuple[tuple[Count, Count, float], ...] = ()
    """Two nodes, by their number among those that take part, and bytes per second between them."""
    sums: tuple[AllReduce, ...] = ()
    fault: Text = ""
    """What torch says; "" if all went well."""


def torch_facts() -> TorchFacts:
    """Import torch, and multiply on one CPU and on each GPU up to the first that fails."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus else ""
    found: list[Product] = []
    try:
        for product in _products(gpus):
            found.append(product)  # noqa: PERF402 - those before an error are kept
    except RuntimeError as error:
        fault = as_line(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        return TorchFacts(nccl, gpus, tuple(found), fault)
    return TorchFacts(nccl, gpus, tuple(found))


def _products(gpus: int) -> Iterator[Product]:
    import torch

    torch.set_num_threads(1)
    yield Product("CPU", _gigaflops(torch.rand(CPU_ROWS, CPU_ROWS), lambda: None))
    for number in range(gpus):
        matrix = torch.rand(GPU_ROWS, GPU_ROWS, device=f"cuda:{number}", dtype=torch.bfloat16)
        speed = _gigaflops(matrix, partial(torch.cuda.synchronize, number))
        yield Product(f"GPU {number}", speed)


def _gigaflops(matrix: Any, finish: Callable[[], None]) -> float:
    def product() -> float:
        began = time.monotonic()
        matrix @ matrix
        finish()
        return time.monotonic() - began

    product()
    until = time.monotonic() + SECONDS_TO_MULTIPLY
    best = product()
    while time.monotonic() < until:
        best = min(best, product())
    return 2 * len(matrix) ** 3 / best / 1e9


def ring_rounds(size: int) -> list[list[tuple[int, int]]]:
    """Return the links of a ring of nodes, in rounds in which no node is in two links."""
    if size == 2:
        return [[(0, 1)]]
    links = [(rank, (rank + 1) % size) for rank in range(size)]
    whole = size - size % 2
    rounds = [links[0:whole:2], links[1:whole:2], links[whole:]]
    return [each for each in rounds if each]


def exchanged(backend: str, rank: int, size: int) -> NetworkSpeeds:
    """Send data along a ring of all nodes, then add up with all; by the store of the job.

    Raises:
        RuntimeError: torch's own, where another node is not there or can't be reached.

    """
    import torch
    from torch import distributed

    limit = timedelta(seconds=SECONDS_FOR_TORCH)
    store = distributed.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=limit
    )
    distributed.init_process_group(
        backend,
        store=distributed.PrefixStore(STORE_PREFIX, store),
        rank=rank,
        world_size=size,
        timeout=limit,
    )
    device = torch.device("cuda:0" if backend == "nccl" else "cpu")
    links = []
    for pairs in ring_rounds(size):
        distributed.barrier()
        if pair := next((pair for pair in pairs if rank in pair), None):
            links.append((*pair, _rate_to(pair, rank, device)))
    sums: list[AllReduce] = []
    for count in GPU_SIZES if backend == "nccl" else SIZES:
        if sums and sums[-1].seconds * count / sums[-1].size > SECONDS_TOO_LONG:
            break
        sums.append(AllReduce(count, _time_all_reduce(count, device)))
    distributed.barrier()
    return NetworkSpeeds(tuple(links), tuple(sums))


def _rate_to(pair: Sequence[int], rank: int, device: Any) -> float:
    """Return bytes per second between two nodes, each way after the other."""
    import torch
    from torch import distributed

    peer = pair[1] if rank == pair[0] else pair[0]
    for count in (KIB, SENT):
        values = torch.ones(count // 4, device=device)
        began = time.monotonic()
        for sender in pair:
            if sender == rank:
                distributed.send(values, peer)
            else:
                distributed.recv(values, peer)
        # Also waits for the GPU.
        values[0].item()
    return 2 * SENT / (time.monotonic() - began)


def _time_all_reduce(count: int, device: Any) -> float:
    """Return the seconds of the best of some rounds, the same on all ranks: that of the slowest."""
    import torch
    from torch import distributed

    values = torch.ones(count // 4, device=device)
    best = float("inf")
    for number in range(ROUNDS):
        began = time.monotonic()
        distributed.all_reduce(values)
        values[0].item()
        took = torch.tensor([time.monotonic() - began], device=device)
        distributed.all_reduce(took, op=distributed.ReduceOp.MAX)
        slowest = float(took.item())
        if number or slowest > SECONDS_TOO_LONG / ROUNDS:
            best = min(best, slowest)
        if slowest > SECONDS_TOO_LONG / ROUNDS:
            break
    return best


def main() -> None:
    """Print what is asked for by the first argument."""
    found: TorchFacts | NetworkSpeeds
    if sys.argv[1] == "torch":
        found = torch_facts()
    else:
        backend, rank, size = sys.argv[2:]
        try:
            found = exchanged(backend, int(rank), int(size))
        except RuntimeError as error:
            found = NetworkSpeeds(fault=as_text(str(error).strip() or "no reason given"))
    sys.stdout.buffer.write(msgspec.json.encode(found))
    sys.stdout.flush()
    # A group that has failed may hang at its end.
    os._exit(0)


if __name__ == "__main__":
    main()
