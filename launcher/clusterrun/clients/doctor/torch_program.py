"""A child process of node_program that runs torch, which may crash or hang.

With the argument ``torch`` it multiplies matrices; with ``links`` it exchanges data with the other nodes.
It prints one line of JSON.
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
"""Takes a few milliseconds, so at least one of many products is not interrupted by other processes."""
GPU_ROWS = 4096

KIB, MIB = 1 << 10, 1 << 20
ALL_REDUCE_SIZES = (64 * KIB, MIB, 16 * MIB)
GPU_ALL_REDUCE_SIZES = (*ALL_REDUCE_SIZES, 256 * MIB)
"""Bytes."""
LINK_BYTES = 8 * MIB
"""Bytes that the two nodes of a link send to each other."""

ROUNDS = 4
"""The first round is not measured."""
MAX_SECONDS_PER_SIZE = 1.5
"""A size that is expected to take longer is skipped."""

STORE_TIMEOUT = 15.0

STORE_PREFIX = "links"


class Product(Struct, frozen=True):
    """The speed of a matrix product on one device."""

    device: Name
    """``CPU``, or for example ``GPU 0``."""
    gigaflops: float


class TorchFacts(Struct, frozen=True):
    """What torch can do on a node."""

    nccl: Name = ""
    """The version of NCCL; "" if torch has no GPU."""
    gpus: Count = 0
    products: tuple[Product, ...] = ()
    fault: Line = ""
    """torch's error on the first device that can't multiply, or ""."""


class AllReduce(Struct, frozen=True):
    """An all_reduce among all nodes."""

    size: Size
    """Bytes."""
    seconds: float
    """The shortest of several, on the slowest node."""


class NetworkSpeeds(Struct, frozen=True):
    """The measurements of one node with the others."""

    links: tuple[tuple[Count, Count, float], ...] = ()
    """The indices of two nodes among those that take part, and bytes per second between them."""
    sums: tuple[AllReduce, ...] = ()
    fault: Text = ""
    """torch's error, or ""."""


def torch_facts() -> TorchFacts:
    """Multiply matrices on one CPU and on each GPU, up to the first that fails."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus else ""
    found, fault = [], ""
    try:
        for product in _products(gpus):
            found.append(product)  # noqa: PERF402 - the products before an error are kept
    except RuntimeError as error:
        fault = as_line(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    return TorchFacts(nccl, gpus, tuple(found), fault)


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
    """Return the links of a ring of nodes, as rounds in which each node has at most one link."""
    if size == 2:
        return [[(0, 1)]]
    links = [(rank, (rank + 1) % size) for rank in range(size)]
    whole = size - size % 2
    rounds = [links[0:whole:2], links[1:whole:2], links[whole:]]
    return [each for each in rounds if each]


def measure_network(backend: str, rank: int, size: int) -> NetworkSpeeds:
    """Send data along a ring of all nodes, then run all_reduce; connect through the job's store.

    Raises:
        RuntimeError: torch's error if another node is missing or can't be reached.

    """
    import torch
    from torch import distributed

    limit = timedelta(seconds=STORE_TIMEOUT)
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
            links.append((*pair, _measure_link(pair, rank, device)))
    sums: list[AllReduce] = []
    for count in GPU_ALL_REDUCE_SIZES if backend == "nccl" else ALL_REDUCE_SIZES:
        if sums and sums[-1].seconds * count / sums[-1].size > MAX_SECONDS_PER_SIZE:
            break
        sums.append(AllReduce(count, _time_all_reduce(count, device)))
    distributed.barrier()
    return NetworkSpeeds(tuple(links), tuple(sums))


def _measure_link(pair: Sequence[int], rank: int, device: Any) -> float:
    """Return bytes per second between two nodes, which send one after the other."""
    import torch
    from torch import distributed

    peer = pair[1] if rank == pair[0] else pair[0]
    for count in (KIB, LINK_BYTES):
        values = torch.ones(count // 4, device=device)
        began = time.monotonic()
        for sender in pair:
            if sender == rank:
                distributed.send(values, peer)
            else:
                distributed.recv(values, peer)
        # Reading a value waits for the GPU.
        values[0].item()
    return 2 * LINK_BYTES / (time.monotonic() - began)


def _time_all_reduce(count: int, device: Any) -> float:
    """Return the seconds that the slowest rank took in the fastest round, the same on all ranks."""
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
        if number or slowest > MAX_SECONDS_PER_SIZE / ROUNDS:
            best = min(best, slowest)
        if slowest > MAX_SECONDS_PER_SIZE / ROUNDS:
            break
    return best


def main() -> None:
    """Print the result for the arguments ``torch`` or ``links BACKEND RANK SIZE``."""
    found: TorchFacts | NetworkSpeeds
    if sys.argv[1] == "torch":
        found = torch_facts()
    else:
        backend, rank, size = sys.argv[2:]
        try:
            found = measure_network(backend, int(rank), int(size))
        except RuntimeError as error:
            found = NetworkSpeeds(fault=as_text(str(error).strip() or "no reason given"))
    sys.stdout.buffer.write(msgspec.json.encode(found))
    sys.stdout.flush()
    # A process group that has failed may hang at exit.
    os._exit(0)


if __name__ == "__main__":
    main()
