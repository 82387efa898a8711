"""Rounds of lost nodes: what one round does to a job that outlives them, and what its ranks note.

A round is drawn from its number alone, so that a failed one can be repeated.
"""

import itertools
import json
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from tests.contract.launched import Ended, Job, kill_marked
from tests.contract.worker_scripts import RANKS_MEET
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, ended

NODES = 5
STEPS = 250
MODULUS = 2**61 - 1

SECONDS_TO_SAVE = 20

TRAINS = f"""{RANKS_MEET}
    import json, pathlib, signal, struct, sys

    def exactly(call, count):
        data = call.recv(count, socket.MSG_WAITALL)
        if len(data) < count:
            raise ConnectionError("connection closed by peer")
        return struct.unpack("!q", data)[0]

    def all_reduced(value):
        total = value
        if rank == 0:
            total += sum(exactly(call, 8) for call in calls)
        for call in calls:
            call.sendall(struct.pack("!q", total))
        return total if rank == 0 else exactly(calls[0], 8)

    world = "-".join(os.environ[it] for it in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"))
    notes = open(f"worlds/{{os.uname().nodename}}-{{os.getpid()}}", "a", buffering=1)

    def save(*_):
        ends = time.monotonic() + {SECONDS_TO_SAVE}
        while time.monotonic() < ends:
            notes.write(f"{{world}} {{time.monotonic()}}\\n")
            time.sleep(0.02)
        sys.exit(1)

    if "save" in sys.argv:
        signal.signal(signal.SIGTERM, save)
    saved = pathlib.Path("checkpoint")
    step, weights = json.loads(saved.read_text()) if saved.exists() else (0, 1)
    print("begins at", step, flush=True)
    while step < {STEPS}:
        weights = (weights * 31 + all_reduced(step * (rank + 1))) % {MODULUS}
        notes.write(f"{{world}} {{time.monotonic()}}\\n")
        step += 1
        if rank == 0 and step % 5 == 0:
            pathlib.Path("unfinished").write_text(json.dumps([step, weights]))
            os.rename("unfinished", saved)
        time.sleep(0.02)
    # No rank leaves before all have made all steps.
    all_reduced(0)
"""
"""Trains weights that depend on each step and each rank, and goes on from its checkpoint.

With the argument ``save``, ranks take their time when they get SIGTERM.
"""

SILENT = 1.5
"""Seconds: ``--heartbeat-timeout`` of all rounds."""

SECONDS_TO_END = 120.0
"""From the last fault to the end of all agents."""

WAYS = {
    "spares": ("--nnodes", "3", "--spares", "2"),
    "elastic": ("--nnodes", f"2:{NODES}", "--last-call-timeout", "2"),
}

ALWAYS = (
    *("--heartbeat-timeout", str(SILENT), "--rdzv-timeout", "15"),
    # A rank that sees its peer's end before its agent does has failed.
    *("--max-restarts", "3", "--events", "events.%n"),
)


@dataclass(frozen=True)
class Loss:
    """One node that is lost, for some time or for good.

    Attributes:
        at: seconds after all ranks have begun.
        how: "agent" or "node" (killed), "frozen", "cut", "mute" (what it sends is lost) or "deaf".
        node: the number of its host.
        seconds: how long a silent one is silent.

    """

    at: float
    how: str
    node: int
    seconds: float = 0.0

    @property
    def is_final(self) -> bool:
        """Whether the agent is killed."""
        return self.how in {"agent", "node"}


@dataclass(frozen=True)
class Round:
    """The way that a job outlives its nodes, and what happens to them."""

    way: str
    losses: tuple[Loss, ...]
    saves: bool
    """Workers catch SIGTERM, and go on for longer than a lease runs."""


def drawn(number: int) -> Round:
    """Return the round of this number: one to three losses, some while the world is formed anew."""
    dice = random.Random(number)
    losses = [_loss(dice, dice.uniform(0.1, 1.0))]
    while len(losses) < 3 and dice.random() < 0.5:
        # At the same moment, while the workers stop and start, or when a silent node is noticed.
        later = dice.choice((0.0, dice.uniform(0.0, 0.4), dice.uniform(SILENT, 3 * SILENT)))
        losses.append(_loss(dice, losses[-1].at + later))
    return Round(dice.choice(tuple(WAYS)), tuple(losses), saves=number % 3 == 0)


def _loss(dice: random.Random, at: float) -> Loss:
    how = dice.choice(("agent", "agent", "node", "frozen", "cut", "mute", "deaf"))
    seconds = dice.choice((0.3, SILENT, 4 * SILENT))
    return Loss(at, how, dice.randrange(NODES), seconds)


def play(round_: Round, nodes: Nodes, hosts: Sequence[Host], folder: Path) -> list[Ended]:
    """Start the job, lose its nodes, and return how each agent ended."""
    (folder / "worlds").mkdir()
    grace = ("--shutdown-timeout", str(SECONDS_TO_SAVE if round_.saves else 1))
    place = ("--master-addr", hosts[0].address, *WAYS[round_.way], *ALWAYS, *grace)
    args = ["save"] if round_.saves else []
    jobs = [
        nodes.start(number, *place, "--node-rank", str(number), args=args)
        for number in range(NODES)
    ]
    working = 3 if round_.way == "spares" else NODES
    for job in jobs[:working]:
        job.wait_for("begins at 0")
    began = time.monotonic()
    acts = [act for it in round_.losses for act in _acts(it, jobs[it.node], hosts)]
    for at, act in sorted(acts, key=lambda timed: timed[0]):
        time.sleep(max(0.0, began + at - time.monotonic()))
        act()
    return ended(jobs, SECONDS_TO_END)


def _acts(
    loss: Loss, job: Job, hosts: Sequence[Host]
) -> Iterator[tuple[float, Callable[[], None]]]:
    """Yield what happens to a node, each with its time."""
    host, over = hosts[loss.node], loss.at + loss.seconds
    others = [it for it in hosts if it is not host]
    match loss.how:
        case "agent":
            yield loss.at, lambda: _signal(job, signal.SIGKILL)
        case "node":
            yield loss.at, lambda: kill_marked(job.mark)
        case "frozen":
            yield loss.at, lambda: _signal(job, signal.SIGSTOP)
            yield over, lambda: _signal(job, signal.SIGCONT)
        case "cut":
            yield loss.at, host.cut
            yield over, host.join
        case "mute":
            yield loss.at, lambda: host.mute(others)
            yield over, lambda: host.unmute(others)
        case _:
            yield from ((loss.at, partial(it.mute, [host])) for it in others)
            yield from ((over, partial(it.unmute, [host])) for it in others)


def _signal(job: Job, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(job.agent).send_signal(number)


def weights_of(ranks: int) -> int:
    """Return the weights that an undisturbed run with this number of ranks ends with."""
    weights = 1
    for step in range(STEPS):
        weights = (weights * 31 + step * ranks * (ranks + 1) // 2) % MODULUS
    return weights


def checkpoint(folder: Path) -> tuple[int, int]:
    """Return the last step that was saved, and its weights."""
    step, weights = json.loads((folder / "checkpoint").read_text())
    return step, weights


def overlapping_worlds(folder: Path) -> list[str]:
    """Return which worlds made steps at the same time as another one; [] is what must be."""
    times: dict[str, list[float]] = {}
    for notes in (folder / "worlds").iterdir():
        for line in notes.read_text().splitlines():
            world, at = line.split(" ")
            times.setdefault(world, []).append(float(at))
    spans = sorted((min(at), max(at), world) for world, at in times.items())
    pairs = itertools.pairwise(spans)
    return [f"{one[2]} until {one[1]}, {two}" for one, two in pairs if one[1] > two[0]]
