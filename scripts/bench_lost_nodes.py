"""Time how soon all nodes of a large job with spares know the world that follows twenty losses.

Node 0 is real; the others are simulated by two processes, as in ``bench_rendezvous``. Twenty nodes are
lost in a second, one after the other, as if their agents were killed. Prints a row of a Markdown table
with medians: the seconds from the last loss until every node that is left has its place in the newest
world, and the memory that node 0's agent holds for each node, before the losses and after them.
"""

import sys
import time
from argparse import ArgumentParser
from contextlib import ExitStack
from functools import partial

from bench_rendezvous import Process, shares
from free_ports import free_port
from side_by_side import Measured, medians, shown
from simulated_nodes import (
    JOIN,
    LOSE,
    LOST,
    MEASURE,
    SECONDS_OF_LOSSES,
    node_zero,
    simulate_losses,
)

SECONDS_TO_SETTLE = 20.0
"""From the last loss to the newest world, at most."""

SECONDS_BETWEEN_CHECKS = 0.5

UNITS, DIGITS = ("s", "kB", "kB"), (2, 1, 1)


def main() -> None:
    """Measure, then print the medians."""
    arguments = ArgumentParser(description="Time twenty losses in a large job with twenty spares.")
    arguments.add_argument("--runs", type=int, default=5, help="the median counts")
    arguments.add_argument("--nodes", type=int, default=2000, metavar="N", help="spares included")
    options = arguments.parse_args()
    [found] = medians(
        options.runs, {"losses": partial(measure, options.nodes)}, warm_up=False
    ).values()
    cells = [f"{options.nodes:,}", *map(shown, found, UNITS, DIGITS)]
    print(f"| {' | '.join(cells)} |")


def measure(nodes: int) -> Measured:
    """Return the figures of one job, in the units of the row."""
    port = free_port()
    with ExitStack() as stack:
        zero = Process(stack, node_zero, nodes, port, LOST)
        others = [Process(stack, simulate_losses, ranks, nodes, port) for ranks in shares(nodes)]
        bytes_before, _ = zero.receive()
        for each in others:
            each.receive()
        for each in others:
            each.send(JOIN)
        for each in others:
            each.receive()
        bytes_joined, _ = zero.ask(MEASURE)
        others[0].send(LOSE)
        time.sleep(SECONDS_OF_LOSSES)
        seconds = seconds_to_newest_world(others, nodes)
        bytes_after, _ = zero.ask(MEASURE)
    return (
        seconds,
        (bytes_joined - bytes_before) / 1e3 / (nodes - 1),
        (bytes_after - bytes_before) / 1e3 / (nodes - 1),
    )


def seconds_to_newest_world(others: list[Process], nodes: int) -> float:
    """Return the seconds from the last loss until all nodes that are left have their places."""
    deadline = time.monotonic() + SECONDS_TO_SETTLE
    before = None
    while time.monotonic() < deadline:
        time.sleep(SECONDS_BETWEEN_CHECKS)
        lost, placed = zip(*(each.ask(MEASURE) for each in others), strict=True)
        places = [place for each in placed for place in each]
        newest = max(attempt for attempt, _ in places)
        if len(places) == nodes - 1 - LOST and all(it == newest for it, _ in places) and newest:
            if before == newest:
                return float(max(at for _, at in places) - max(lost))
            before = newest
    sys.exit(f"no world of {nodes - LOST} nodes within {SECONDS_TO_SETTLE:g} s: {places[:5]}")


if __name__ == "__main__":
    main()
