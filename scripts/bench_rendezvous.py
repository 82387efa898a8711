"""Time how soon the nodes of large jobs have met, and how soon all know that one has failed.

One real node 0, in a process of its own; the others are simulated in a few processes: real
connections on loopback, and all that is said on them. The time to meet runs from the first call
to when the last node knows its place, and is shown next to that of torch's c10d rendezvous, whose
nodes are threads of as many processes that have imported torch already. That of a failure runs
from when one node says so to when each of the others hears it, while all give their usual signs of
life. Memory is what node 0's agent holds more (RssAnon) for each node that has come; what the
kernel holds is not in it.

Prints rows of a Markdown table: the number of nodes, the medians of the seconds until they have
met, the same for torch's, the milliseconds until half of the nodes and 99 of 100 know of a
failure, the seconds until all know the cause and have ended, and the memory.
"""

import math
import multiprocessing
import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

import c10d_rendezvous
from side_by_side import Measured, free_port, medians, shown
from simulated_nodes import FAIL, GO, WEIGH, crowd, node_zero

SECONDS_FOR_ONE = 120.0
"""For anything that a run waits for."""

SECONDS_FOR_TORCH = 600.0
"""After which torchrun gives up, too."""

SECONDS_TO_SETTLE = 1.0
"""From when all have met to the failure."""

SECONDS_TO_END = 5.0
"""For a process that has nothing more to do."""

SIZES = (50, 100, 500, 2000, 5000)
SIZES_OF_TORCH = (50, 100)

UNITS, DIGITS = ("s", "ms", "ms", "s", "kB"), (3, 1, 1, 2, 1)
"""Of what a run of ours shows."""

CROWDS = 2
"""Processes that simulate the nodes."""


def main() -> None:
    """Measure, then print the medians."""
    arguments = ArgumentParser(description="Time the rendezvous of large jobs.")
    arguments.add_argument("--runs", type=int, default=5, help="of each; the median counts")
    arguments.add_argument("--nodes", type=int, nargs="+", default=SIZES, metavar="N")
    arguments.add_argument(
        "--torch", type=int, nargs="*", default=SIZES_OF_TORCH, metavar="N", help="nodes of torch's"
    )
    options = arguments.parse_args()
    ours = {f"{nodes}": partial(met, nodes) for nodes in options.nodes}
    theirs = {f"torch {nodes}": partial(met_by_torch, nodes) for nodes in options.torch}
    found = medians(options.runs, {**ours, **theirs}, warm_up=False)
    for nodes in sorted({*options.nodes, *options.torch}):
        print(row(nodes, found.get(f"{nodes}", ()), found.get(f"torch {nodes}", ())))


def row(nodes: int, ours: Measured, theirs: Measured) -> str:
    """Return a row of the table; what was not measured stays empty."""
    join, *others = map(shown, ours, UNITS, DIGITS) if ours else [""] * len(UNITS)
    [torch] = map(shown, theirs, UNITS, DIGITS) if theirs else [""]
    return f"| {' | '.join([f'{nodes:,}', join, torch, *others])} |"


def met(nodes: int) -> Measured:
    """Return what one job of so many nodes shows, in the units of ``row``."""
    port = free_port()
    with ExitStack() as stack:
        zero = Process(stack, node_zero, nodes, port)
        others = [Process(stack, crowd, ranks, nodes, port) for ranks in shares(nodes)]
        held = zero.hears()
        for each in others:
            each.hears()
        called_at = time.monotonic()
        for each in others:
            each.says(GO)
        joined_at = max(each.hears() for each in others)
        time.sleep(SECONDS_TO_SETTLE)
        zero.says(WEIGH)
        memory = (zero.hears() - held) / (nodes - 1)
        others[0].says(FAIL)
        failures, stops, ends = zip(*(each.hears() for each in others), strict=True)
    failed_at = max(failures)
    delays = [heard - failed_at for each in stops for heard in each]
    percents = statistics.quantiles(delays, n=100)
    return (
        joined_at - called_at,
        1000 * percents[49],
        1000 * percents[98],
        max(ends) - failed_at,
        memory / 1000,
    )


def shares(nodes: int) -> list[range]:
    """Return the ranks of each crowd: all but node 0's."""
    bounds = [1 + (nodes - 1) * number // CROWDS for number in range(CROWDS + 1)]
    return [range(*pair) for pair in pairwise(bounds)]


def met_by_torch(nodes: int) -> Measured:
    """Return how long torch's rendezvous takes for so many nodes."""
    port = free_port()
    with ExitStack() as stack:
        store = Process(stack, c10d_rendezvous.store, port)
        others = [
            Process(stack, c10d_rendezvous.crowd, len(ranks), nodes, port)
            for ranks in shares(nodes + 1)
        ]
        for each in (store, *others):
            each.hears()
        called_at = time.monotonic()
        for each in others:
            each.says(GO)
        deadline = called_at + SECONDS_FOR_TORCH
        ends = [each.hears_by(deadline) for each in others]
    return (max(ends) - called_at,)


class Process:
    """A process of this benchmark, and the line to it; it ends with ``stack``."""

    def __init__(self, stack: ExitStack, target: Callable[..., None], *arguments: object) -> None:
        """Start it: ``target`` gets its end of the line, and the arguments."""
        spawn = multiprocessing.get_context("spawn")
        self._line, theirs = spawn.Pipe()
        self._process = spawn.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        stack.callback(self._end)

    def says(self, word: str) -> None:
        """Send it a word."""
        self._line.send(word)

    def hears(self) -> Any:  # noqa: ANN401 - whatever it sends
        """Return its next answer; end the benchmark if none comes."""
        if not self._line.poll(SECONDS_FOR_ONE):
            sys.exit(f"{self._process.name}: no answer within {SECONDS_FOR_ONE:g} s")
        return self._line.recv()

    def hears_by(self, deadline: float) -> float:
        """Return the time that it tells; infinity if it tells none by then."""
        if not self._line.poll(max(0.0, deadline - time.monotonic())):
            return math.inf
        return float(self._line.recv())

    def _end(self) -> None:
        self._line.close()
        self._process.join(SECONDS_TO_END)
        self._process.kill()
        self._process.join()


if __name__ == "__main__":
    main()
