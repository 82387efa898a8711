"""Run a large job without faults: how close do leases come to their ends?

Node 0 is real; the others are simulated by two processes, as in ``bench_lost_nodes``. With ``--busy``, a
process computes on each core meanwhile. Prints a row of a Markdown table: nodes, the interval and the
timeout of their heartbeats, the shortest time that a member's lease had to run when it was renewed, and
the part of a core that node 0 needed. Exits with 1 if a lease ended or a node was lost.
"""

import multiprocessing
import os
import sys
import time
from argparse import ArgumentParser
from contextlib import ExitStack

from bench_rendezvous import Process, shares
from clusterrun.policy.settings import heartbeat_rhythm
from free_ports import free_port
from simulated_nodes import JOIN, LEASES, MEASURE, node_zero, simulate_losses

SPARES = 1


def main() -> None:
    """Measure, and print the row."""
    arguments = ArgumentParser(description="Run a job without faults and look at its leases.")
    arguments.add_argument("--nodes", type=int, default=1000, metavar="N")
    arguments.add_argument("--heartbeat-timeout", type=float, default=5.0, metavar="SECONDS")
    arguments.add_argument("--seconds", type=float, default=600.0, help="how long the job runs")
    arguments.add_argument("--busy", action="store_true", help="compute on each core meanwhile")
    options = arguments.parse_args()
    nodes, silent = options.nodes, options.heartbeat_timeout
    rhythm = heartbeat_rhythm(nodes, silent)
    port = free_port()
    with ExitStack() as stack:
        zero = Process(stack, node_zero, nodes, port, SPARES, silent)
        others = [
            Process(stack, simulate_losses, ranks, nodes, port, silent) for ranks in shares(nodes)
        ]
        for each in (zero, *others):
            each.receive()
        for each in others:
            each.send(JOIN)
        for each in others:
            each.receive()
        for _ in range(os.cpu_count() or 1) if options.busy else ():
            computing = multiprocessing.Process(target=compute, daemon=True)
            computing.start()
            stack.callback(computing.kill)
        _, before = zero.ask(MEASURE)
        time.sleep(options.seconds)
        members, gone = zip(*(each.ask(LEASES) for each in others), strict=True)
        _, after = zero.ask(MEASURE)
    seconds = [f"{each:.3g} s" for each in (rhythm.interval, rhythm.timeout, min(members))]
    used = f"{100 * (after - before) / options.seconds:.1f} %"
    print(f"| {' | '.join([f'{nodes:,}', *seconds, used])} |")
    if min(members) <= 0 or any(gone):
        sys.exit(f"{sum(gone)} nodes were lost, or a lease ended")


def compute() -> None:
    """Need all of a core."""
    while True:
        pass


if __name__ == "__main__":
    main()
