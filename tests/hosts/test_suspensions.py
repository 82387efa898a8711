"""Suspensions on three hosts with two ranks each: all six ranks stop at one step, every time."""

import random
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.contract.launched import Ended, Job, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.hosts.stepping_ranks import RANKS_STEP
from tests.rounds import numbers
from tests.waiting import wait_until

REQUESTS = 200
NODES = 3
RANKS = 6

STEPS_UNTIL_SUSPENDED = (
    RANKS_STEP
    + """
    import random
    from clusterrun import suspend

    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    dice = random.Random(f"{faults['seed']} {rank}")
    print(f"rank {rank} begins attempt {attempt}", flush=True)
    for step in range(100_000):
        time.sleep(dice.choice((0, 0, 0.001, 0.02)))
        if faults["together"] == "yes":
            all_reduce()
        if attempt == "0" and faults.get(str(rank)) == str(step):
            sys.exit(3)
        if suspend.requested(step):
            print(f"rank {rank} saves step {step} of attempt {attempt}", flush=True)
            time.sleep(dice.choice((0, 0, 0.05)))
            suspend.ready()
            print(f"rank {rank} goes on")
"""
)

SAVED = re.compile(r"rank (\d) saves step (\d+) of attempt (\d)\n")


class Round(NamedTuple):
    """One request, drawn from its number alone.

    ``when``: "joining", "running" or "restarting". ``at``: seconds after that. ``sources``: nodes
    whose agents get the signal, one after the other. ``words``: the arguments of the script.
    """

    when: str
    at: float
    sources: tuple[int, ...]
    number: int
    words: tuple[str, ...]


def drawn(number: int) -> Round:
    dice = random.Random(number)
    when = dice.choice(("joining", "running", "running", "running", "restarting"))
    words = [f"seed={number}", f"together={dice.choice(('yes', 'no'))}"]
    if when == "restarting":
        words.append(f"{dice.randrange(RANKS)}={dice.randrange(30)}")
    # Before the first call, SIGTERM ends a job.
    numbers = (signal.SIGTERM, signal.SIGUSR1) if when == "running" else (signal.SIGUSR1,)
    sources = tuple(dice.sample(range(NODES), k=dice.choice((1, 1, 2))))
    at = dice.uniform(0.0, 0.5)
    return Round(when, at, sources, dice.choice(numbers), tuple(words))


@pytest.mark.long
@pytest.mark.parametrize("number", numbers(REQUESTS))
def test_all_ranks_stop_at_same_step(
    number: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Signals reach random agents at a random time."""
    round_ = drawn(number)
    nodes = Nodes(clusterrun, hosts, STEPS_UNTIL_SUSPENDED)
    options = ("--start-method", "spawn", "--suspend-signal", "USR1", "--max-restarts", "1")

    jobs = nodes.start_all(*options, workers=(2, 2, 2), args=round_.words)
    _await(round_, jobs)
    time.sleep(round_.at)
    for source in round_.sources:
        jobs[source].signal(round_.number)
    ends = ended(jobs)

    said = f"{round_}\n" + "\n".join(f"--- node {i}: {end}" for i, end in enumerate(ends))
    assert codes(ends) == [75] * NODES, said
    step = _agreed_step(ends)
    assert step >= 0, said
    assert all(f"exit code 75: suspended at step {step}, " in end.err for end in ends), said
    assert [job.left() for job in jobs] == [[]] * NODES, said


def _await(round_: Round, jobs: Sequence[Job]) -> None:
    """Wait until a request may come: ranks step, or agents handle signals."""
    if round_.when == "joining":
        # Before it has read its options, an agent ignores SIGUSR1, and handles no SIGXCPU.
        for job in jobs:
            wait_until(lambda job=job: _handles(job.agent, signal.SIGXCPU), "its handlers")  # type: ignore[misc]
        return
    if round_.when == "restarting":
        # Others may be stopped before they print.
        failing = int(round_.words[-1].partition("=")[0])
        jobs[failing // 2].wait_for(f"rank {failing} begins attempt 0")
        return
    for job in jobs:
        job.wait_for(r"rank \d begins attempt 0", times=2)
    # So that SIGTERM is a request: all agents know that the ranks ask.
    time.sleep(0.3)


def _handles(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"SigCgt:\s*(\w+)", status)
    return caught is not None and bool(int(caught[1], 16) & (1 << (number - 1)))


def _agreed_step(ends: Sequence[Ended]) -> int:
    """Return the one step at which all ranks of the last attempt saved; -1: there is none."""
    saved = [tuple(map(int, found)) for end in ends for found in SAVED.findall(end.out)]
    last = max((attempt for _, _, attempt in saved), default=0)
    steps = {step for _, step, attempt in saved if attempt == last}
    ranks = sorted(rank for rank, _, attempt in saved if attempt == last)
    return steps.pop() if len(steps) == 1 and ranks == list(range(RANKS)) else -1
