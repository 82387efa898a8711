"""Time how soon the nodes of large jobs have joined, and how soon all know that one has failed.

Node 0 is real, in a process of its own; the other nodes are simulated by two processes over real
connections on loopback. The nodes of torch's c10d rendezvous are threads of two processes that have
imported torch before. During a failure all nodes send their usual heartbeats.

Prints a row of a Markdown table for each number of nodes, with medians of all runs: the seconds from
the first call until the last node knows its ranks; the same of torch's rendezvous; from a rank's
failure the milliseconds until half of the other nodes, and 99 of 100, know of it, and the seconds
until all know its cause and have ended; the memory that node 0's agent holds for each node (RssAnon);
the processor time of node 0 for each node, while they join and while they end; and the seconds to join
and to end for each node, divided by those of the job with 1,000 nodes, or else the smallest one.
"""

import math
import multiprocessing
import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

import c10d_rendezvous
from free_ports import free_port
from side_by_side import Measured, medians, shown
from simulated_nodes import FAIL, JOIN, MEASURE, node_zero, simulate_nodes

SECONDS_TO_ANSWER = 120.0
"""For anything that a run waits for."""

SECONDS_FOR_TORCH = 600.0
"""After which torchrun gives up, too."""

SECONDS_OF_HEARTBEATS = 1.0
"""Between the end of joining and the failure."""

SECONDS_TO_EXIT = 5.0
"""For a process that has nothing more to do."""

SIZES = (50, 100, 1000, 5000, 10_000)
SIZES_OF_TORCH = (50, 100)

UNITS, DIGITS = ("s", "ms", "ms", "s", "kB", "µs", "µs"), (3, 1, 1, 2, 1, 0, 0)
"""Of the figures of one run."""

JOINED, ENDED = 0, 3
"""Columns whose growth with the number of nodes is shown."""

COMPARED_WITH = 1000
"""Nodes of the job that others are compared with."""

SIMULATORS = 2
"""Processes that simulate nodes."""


def main() -> None:
    """Measure, then print the medians."""
    arguments = ArgumentParser(description="Time the rendezvous of large jobs.")
    arguments.add_argument("--runs", type=int, default=5, help="of each; the median counts")
    arguments.add_argument("--nodes", type=int, nargs="+", default=SIZES, metavar="N")
    arguments.add_argument(
        "--torch", type=int, nargs="*", default=SIZES_OF_TORCH, metavar="N", help="nodes of torch's"
    )
    options = arguments.parse_args()
    ours = {f"{nodes}": partial(measure, nodes) for nodes in options.nodes}
    theirs = {f"torch {nodes}": partial(measure_torch, nodes) for nodes in options.torch}
    found = medians(options.runs, {**ours, **theirs}, warm_up=False)
    compared_with = COMPARED_WITH if COMPARED_WITH in options.nodes else min(options.nodes)
    usual = [figure / compared_with for figure in found[f"{compared_with}"]]
    for nodes in sorted({*options.nodes, *options.torch}):
        print(row(nodes, found.get(f"{nodes}", ()), found.get(f"torch {nodes}", ()), usual))


def row(nodes: int, ours: Measured, theirs: Measured, usual: Sequence[float]) -> str:
    """Return a row of the table; a cell without a measurement stays empty.

    ``usual`` are the figures for each node of the job that this one is compared with.
    """
    joined, *others = map(shown, ours, UNITS, DIGITS) if ours else [""] * len(UNITS)
    [torch] = map(shown, theirs, ("s",), (1,)) if theirs else [""]
    growth = [
        shown(ours[column] / nodes / usual[column], "times", 2) if ours else ""
        for column in (JOINED, ENDED)
    ]
    return f"| {' | '.join([f'{nodes:,}', joined, torch, *others, *growth])} |"


def measure(nodes: int) -> Measured:
    """Return the figures of one job with so many nodes, in the units of ``row``."""
    port = free_port()
    with ExitStack() as stack:
        zero = Process(stack, node_zero, nodes, port)
        others = [Process(stack, simulate_nodes, ranks, nodes, port) for ranks in shares(nodes)]
        bytes_before, processor_before = zero.receive()
        for each in others:
            each.receive()
        called_at = time.monotonic()
        for each in others:
            each.send(JOIN)
        joined_at = max(each.receive() for each in others)
        bytes_joined, processor_joined = zero.ask(MEASURE)
        time.sleep(SECONDS_OF_HEARTBEATS)
        _, processor_at_failure = zero.ask(MEASURE)
        others[0].send(FAIL)
        failures, stops, ends = zip(*(each.receive() for each in others), strict=True)
        _, processor_at_end = zero.receive()
    failed_at = max(failures)
    percents = statistics.quantiles([at - failed_at for each in stops for at in each], n=100)
    return (
        joined_at - called_at,
        1e3 * percents[49],
        1e3 * percents[98],
        max(ends) - failed_at,
        (bytes_joined - bytes_before) / 1e3 / (nodes - 1),
        1e6 * (processor_joined - processor_before) / (nodes - 1),
        1e6 * (processor_at_end - processor_at_failure) / (nodes - 1),
    )


def shares(nodes: int) -> list[range]:
    """Return the node ranks that each process simulates: all but 0."""
    bounds = [1 + (nodes - 1) * number // SIMULATORS for number in range(SIMULATORS + 1)]
    return [range(*pair) for pair in pairwise(bounds)]


def measure_torch(nodes: int) -> Measured:
    """Return how long torch's rendezvous takes for so many nodes."""
    port = free_port()
    with ExitStack() as stack:
        store = Process(stack, c10d_rendezvous.store, port)
        others = [
            Process(stack, c10d_rendezvous.meet, len(ranks), nodes, port)
            for ranks in shares(nodes + 1)
        ]
        for each in (store, *others):
            each.receive()
        called_at = time.monotonic()
        for each in others:
            each.send(JOIN)
        deadline = called_at + SECONDS_FOR_TORCH
        ends = [each.receive_time(deadline) for each in others]
    return (max(ends) - called_at,)


class Process:
    """A process of this benchmark, and a pipe to it; ``stack`` ends it."""

    def __init__(self, stack: ExitStack, target: Callable[..., None], *arguments: object) -> None:
        """Start it: ``target`` gets its end of the pipe, and the arguments."""
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        stack.callback(self._end)

    def send(self, order: str) -> None:
        self._pipe.send(order)

    def receive(self) -> Any:  # whatever it sends
        """Return its next answer; end the benchmark if none comes."""
        if not self._pipe.poll(SECONDS_TO_ANSWER):
            sys.exit(f"{self._process.name}: no answer within {SECONDS_TO_ANSWER:g} s")
        return self._pipe.recv()

    def ask(self, order: str) -> Any:  # as above
        """Return its answer to ``order``."""
        self.send(order)
        return self.receive()

    def receive_time(self, deadline: float) -> float:
        """Return the time that it sends; infinity if it sends none by then."""
        if not self._pipe.poll(max(0.0, deadline - time.monotonic())):
            return math.inf
        return float(self._pipe.recv())

    def _end(self) -> None:
        self._pipe.close()
        self._process.join(SECONDS_TO_EXIT)
        self._process.kill()
        self._process.join()


if __name__ == "__main__":
    main()
