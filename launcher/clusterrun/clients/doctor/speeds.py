"""How fast a node computes, and how fast nodes add up: both by torch, which is imported here only."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from clusterrun.bounds import Line, Name, Size, as_line

if TYPE_CHECKING:
    from torch.distributed import Store

SECONDS_TO_MULTIPLY = 0.4
CPU_ROWS = 384
"""A product of a few milliseconds, so that one of many is not interrupted by other processes."""
GPU_ROWS = 4096

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 16 * MIB)
GPU_SIZES = (*SIZES, 256 * MIB)
"""Bytes that are added up."""

REPEATS = 5
SECONDS_TOO_LONG = 1.5
"""A size that is expected to take longer is left out."""

SECONDS_FOR_TORCH = 10.0


class Product(Struct, frozen=True):
    """A matrix product on one device."""

    device: Name
    """``CPU``, ``GPU 0``."""
    gigaflops: float


class Products(Struct, frozen=True):
    """The matrix products of a node."""

    found: list[Product]
    fault: Line = ""
    """What torch says of the first device that can't multiply; "" if all can."""


class AllReduce(Struct, frozen=True):
    """An all_reduce of one size."""

    size: Size
    """Bytes."""
    seconds: float
    """The slowest rank's, in the best of several rounds."""


def measure_products(gpus: int) -> Products:
    """Return the speed of one CPU, and of each GPU up to the first that fails."""
    found: list[Product] = []
    try:
        for product in _products(gpus):
            found.append(product)  # noqa: PERF402 - those before an error are kept
    except (ImportError, OSError, RuntimeError) as error:
        # A torch that can't be imported, a GPU that is full or broken.
        return Products(
            found, as_line(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        )
    return Products(found)


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


def open_store(host: str, port: int, *, is_master: bool) -> "Store":
    """Return torch's store; port 0 chooses one on the master.

    Raises:
        RuntimeError: torch's own, where it can't be reached.

    """
    from torch.distributed import TCPStore

    return TCPStore(
        host,
        port,
        is_master=is_master,
        wait_for_workers=False,
        timeout=timedelta(seconds=SECONDS_FOR_TORCH),
    )


def all_reduces(
    store: "Store", name: str, members: Sequence[int], rank: int, backend: str
) -> list[AllReduce]:
    """Return the speed of all_reduce among ``members``, of which ``rank`` is one, by size.

    Raises:
        RuntimeError: torch's own: a member is not there, or can't be reached.

    """
    import torch
    from torch import distributed

    distributed.init_process_group(
        backend,
        store=distributed.PrefixStore(name, store),
        rank=list(members).index(rank),
        world_size=len(members),
        timeout=timedelta(seconds=SECONDS_FOR_TORCH),
    )
    device = torch.device("cuda:0" if backend == "nccl" else "cpu")
    found: list[AllReduce] = []
    try:
        for size in GPU_SIZES if backend == "nccl" else SIZES:
            if found and found[-1].seconds * size / found[-1].size > SECONDS_TOO_LONG:
                break
            found.append(AllReduce(size, _time_all_reduce(size, device)))
        distributed.barrier()
    finally:
        with suppress(RuntimeError):
            distributed.destroy_process_group()
    return found


def _time_all_reduce(size: int, device: Any) -> float:
    """Return the seconds of the best round, the same on all ranks: each takes the slowest's."""
    import torch
    from torch import distributed

    values = torch.ones(size // 4, device=device)
    best = float("inf")
    for number in range(REPEATS):
        began = time.monotonic()
        distributed.all_reduce(values)
        # Also waits for the GPU.
        values[0].item()
        took = torch.tensor([time.monotonic() - began], device=device)
        distributed.all_reduce(took, op=distributed.ReduceOp.MAX)
        slowest = float(took.item())
        if number or slowest > SECONDS_TOO_LONG / REPEATS:
            best = min(best, slowest)
        if slowest > SECONDS_TOO_LONG / REPEATS:
            break
    return best


def ring_rounds(size: int) -> list[list[tuple[int, int]]]:
    """Return the links of a ring of nodes, in rounds in which no node is in two links."""
    if size == 2:
        return [[(0, 1)]]
    links = [(rank, (rank + 1) % size) for rank in range(size)]
    whole = size - size % 2
    rounds = [links[0:whole:2], links[1:whole:2], links[whole:]]
    return [each for each in rounds if each]
