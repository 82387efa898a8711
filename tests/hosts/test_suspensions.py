"""Suspensions on three hosts with two ranks each: all six ranks stop at the same step."""

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
from tests.hosts.nodes import Nodes, codes, ended, outputs
from tests.hosts.stepping_ranks import RANKS_STEP
from tests.rounds import numbers
from tests.waiting import wait_until

NODES = 3
RANKS = 6

MAKE_STEPS = (
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
            print(f"rank {rank} continues")
"""
)

SAVED = re.compile(r"rank (\d) saves step (\d+) of attempt (\d)\n")


class Round(NamedTuple):
    """One request for a suspension."""

    when: str
    """"joining", "running" or "restarting"."""
    after: float
    """Seconds."""
    nodes: tuple[int, ...]
    """The agents of these nodes get the signal, one after the other."""
    number: int
    """Of the signal."""
    args: tuple[str, ...]
    """Of the script."""


def random_round(seed: int) -> Round:
    dice = random.Random(seed)
    when = dice.choice(("joining", "running", "running", "running", "restarting"))
    args = [f"seed={seed}", f"together={dice.choice(('yes', 'no'))}"]
    if when == "restarting":
        args.append(f"{dice.randrange(RANKS)}={dice.randrange(30)}")
    # Before the first call, SIGTERM ends a job.
    numbers = (signal.SIGTERM, signal.SIGUSR1) if when == "running" else (signal.SIGUSR1,)
    nodes = tuple(dice.sample(range(NODES), k=dice.choice((1, 1, 2))))
    after = dice.uniform(0.0, 0.5)
    return Round(when, after, nodes, dice.choice(numbers), tuple(args))


@pytest.mark.long
@pytest.mark.parametrize("number", numbers(15))
def test_all_ranks_stop_at_same_step(
    number: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Signals reach random agents at a random time."""
    round_ = random_round(number)
    nodes = Nodes(clusterrun, hosts, MAKE_STEPS)
    options = ("--start-method", "spawn", "--suspend-signal", "USR1", "--max-restarts", "1")

    jobs = nodes.start_all(*options, workers=(2, 2, 2), args=round_.args)
    _await(round_, jobs)
    time.sleep(round_.after)
    for node in round_.nodes:
        jobs[node].signal(round_.number)
    ends = ended(jobs)

    context = outputs(round_, ends)
    assert codes(ends) == [75] * NODES, context
    step = _common_step(ends)
    assert step is not None, context
    assert all(f"exit code 75: suspended at step {step}, " in end.err for end in ends), context
    assert [job.left() for job in jobs] == [[]] * NODES, context


def _await(round_: Round, jobs: Sequence[Job]) -> None:
    """Wait until a request is possible: ranks make steps, or agents handle signals."""
    if round_.when == "joining":
        # Before it has read its options, an agent ignores SIGUSR1, and handles no SIGXCPU.
        for job in jobs:
            wait_until(lambda job=job: _handles(job.agent, signal.SIGXCPU), "its handlers")  # type: ignore[misc]
        return
    if round_.when == "restarting":
        # Others may be stopped before they print.
        failing = int(round_.args[-1].partition("=")[0])
        jobs[failing // 2].wait_for(f"rank {failing} begins attempt 0")
        return
    for job in jobs:
        job.wait_for(r"rank \d begins attempt 0", times=2)
    # SIGTERM is a request once all agents know that the ranks call ``suspend.requested``.
    time.sleep(0.3)


def _handles(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"SigCgt:\s*(\w+)", status)
    return caught is not None and bool(int(caught[1], 16) & (1 << (number - 1)))


def _common_step(ends: Sequence[Ended]) -> int | None:
    """Return the step at which all ranks of the last attempt saved, if it is the same one."""
    saved = [tuple(map(int, found)) for end in ends for found in SAVED.findall(end.out)]
    last = max((attempt for _, _, attempt in saved), default=0)
    steps = {step for _, step, attempt in saved if attempt == last}
    ranks = sorted(rank for rank, _, attempt in saved if attempt == last)
    return steps.pop() if len(steps) == 1 and ranks == list(range(RANKS)) else None
