"""Rounds of lost nodes: what one round does to a job that outlives them, and what its ranks note.

A round is drawn from its number alone, so that a failed one can be repeated.
"""

import itertools
import json
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from tests.contract.launched import Ended, Job, kill_marked
from tests.contract.worker_scripts import RANKS_RENDEZVOUS
from tests.hosts.chaos import HELPER_LOST, kind_of
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, ended
from tests.hosts.slow_link import SlowLink

NODES = 5
STEPS = 250
MODULUS = 2**61 - 1

SECONDS_TO_SAVE = 20

TRAINS = f"""{RANKS_RENDEZVOUS}
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
    "rejoin": ("--nnodes", f"{NODES}", "--rejoin-timeout", "20"),
}

WORKING = {"spares": 3, "elastic": NODES, "rejoin": NODES}
"""The nodes of the first attempt."""

ALWAYS = (
    *("--heartbeat-timeout", str(SILENT), "--rdzv-timeout", "15"),
    # A rank that sees its peer's end before its agent does has failed.
    *("--max-restarts", "3", "--events", "events.%n"),
)


HELPERS = ("fork server", "relay")
FREEZES = ("agent", "worker", *HELPERS)

LINKS: Mapping[str, Mapping[str, float]] = {
    "slow": {"sends": 0.15, "gets": 0.15},
    "slow one way": {"sends": 0.4},
    "lossy": {"loss": 0.2},
}
"""What may be wrong with the link of a host."""


@dataclass(frozen=True)
class Loss:
    """One node that is lost, for some time or for good.

    Attributes:
        at: seconds after all ranks have begun.
        how: "killed" (its agent), "killed, and back" (and started once more), "node" (all its processes
            are killed), "frozen", "cut", "mute" (what it sends is lost), "deaf", or one of ``LINKS``.
        node: the number of its host.
        seconds: how long a fault lasts that is not for good.
        whom: which process is frozen, one of ``FREEZES``.

    """

    at: float
    how: str
    node: int
    seconds: float = 0.0
    whom: str = "agent"

    @property
    def is_final(self) -> bool:
        """Whether the agent is killed."""
        return self.how in {"killed", "killed, and back", "node"}


KILLED = re.compile(r"^clusterrun: .*rank \d+ .*was killed by")

LOST = re.compile(r"node \d+ \((n\d)\) (?:is gone|has been silent|was stopped|has lost its)")


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
        loss = _loss(dice, losses[-1].at + later)
        if not any(_leaves_workers_alone(loss, it) for it in losses):
            losses.append(loss)
    return Round(dice.choice(tuple(WAYS)), tuple(losses), saves=number % 3 == 0)


def _loss(dice: random.Random, at: float) -> Loss:
    how = dice.choice(
        (
            *("killed", "killed, and back", "node", "cut", "mute", "deaf"),
            *("frozen", "frozen", "frozen"),
            *LINKS,
        )
    )
    whom = dice.choice(("agent", *FREEZES))
    seconds = dice.choice((0.3, SILENT, 4 * SILENT))
    if whom in HELPERS and seconds > SILENT:
        seconds = HELPER_LOST
    return Loss(at, how, dice.randrange(NODES), seconds, whom)


def _leaves_workers_alone(one: Loss, other: Loss) -> bool:
    """Return whether nobody may be left on a node to end its workers: docs/several_nodes.md, "Leases"."""
    both = (one, other)
    return (
        one.node == other.node
        and any(it.how == "frozen" and it.whom == "fork server" for it in both)
        and any(it.is_final or (it.how == "frozen" and it.whom == "agent") for it in both)
    )


class Play:
    """A job whose nodes are lost."""

    def __init__(self, round_: Round, nodes: Nodes, hosts: Sequence[Host], folder: Path) -> None:
        """Start it in ``folder``; all ranks have begun when this returns."""
        (folder / "worlds").mkdir()
        self._round, self._nodes, self._hosts = round_, nodes, hosts
        self.jobs = [self._start(node) for node in range(NODES)]
        """By node; then those that were started once more."""
        for job in self.jobs[: WORKING[round_.way]]:
            job.wait_for("begins at 0")

    def ends(self) -> list[Ended]:
        """Lose its nodes, and return how each agent ended, in the order of ``jobs``."""
        began = time.monotonic()
        acts = [act for it in self._round.losses for act in self._acts(it)]
        for at, act in sorted(acts, key=lambda timed: timed[0]):
            time.sleep(max(0.0, began + at - time.monotonic()))
            act()
        return ended(self.jobs, SECONDS_TO_END)

    def _start(self, node: int) -> Job:
        grace = ("--shutdown-timeout", str(SECONDS_TO_SAVE if self._round.saves else 1))
        place = ("--master-addr", self._hosts[0].address, *WAYS[self._round.way])
        args = ["save"] if self._round.saves else []
        return self._nodes.start(node, *place, *ALWAYS, *grace, "--node-rank", str(node), args=args)

    def _acts(self, loss: Loss) -> Iterator[tuple[float, Callable[[], None]]]:
        """Yield what happens to a node, each with its time."""
        job, host, over = self.jobs[loss.node], self._hosts[loss.node], loss.at + loss.seconds
        others = [it for it in self._hosts if it is not host]
        match loss.how:
            case "killed":
                yield loss.at, lambda: _signal(job.agent, signal.SIGKILL)
            case "killed, and back":
                yield loss.at, lambda: _signal(job.agent, signal.SIGKILL)
                yield over, lambda: self.jobs.append(self._start(loss.node))
            case "node":
                yield loss.at, lambda: kill_marked(job.mark)
            case "frozen":
                frozen: list[psutil.Process] = []
                yield loss.at, lambda: frozen.extend(_freeze(job, loss.whom))
                yield over, lambda: _continue(frozen)
            case "cut":
                yield loss.at, host.cut
                yield over, host.join
            case "mute":
                yield loss.at, lambda: host.mute(others)
                yield over, lambda: host.unmute(others)
            case "deaf":
                yield from ((loss.at, partial(it.mute, [host])) for it in others)
                yield from ((over, partial(it.unmute, [host])) for it in others)
            case _:
                link = SlowLink(host, **LINKS[loss.how])
                yield loss.at, link.open
                yield over + SILENT, link.close


def _freeze(job: Job, whom: str) -> Iterator[psutil.Process]:
    """Stop a process of a node, if there is one, and yield it."""
    with suppress(psutil.NoSuchProcess):
        for process in job.processes():
            if kind_of(process, job.agent) == whom:
                process.send_signal(signal.SIGSTOP)
                yield process
                return


def _continue(frozen: Sequence[psutil.Process]) -> None:
    for process in frozen:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


def _signal(pid: int, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).send_signal(number)


def wrong_ends(round_: Round, ends: Sequence[Ended]) -> list[str]:
    """Return what is said or done by an agent that is not true of this round; [] is what must be."""
    struck = {f"n{loss.node}" for loss in round_.losses}
    killed = any(loss.how == "node" for loss in round_.losses)
    wrong = [
        f"agent {number}: {line}"
        for number, end in enumerate(ends)
        for line in end.err.splitlines()
        if (KILLED.search(line) and not killed)
        # A node that is cut off names node 0, and node 0, if it is, any other.
        or ("n0" not in struck and set(LOST.findall(line)) - {"n0", *struck})
    ]
    helper = any(it.how == "frozen" and it.whom in HELPERS for it in round_.losses)
    right = {0, 4, 5, -signal.SIGKILL, *((137,) if helper else ())}
    wrong += [
        f"agent {i}: exit code {end.code}" for i, end in enumerate(ends) if end.code not in right
    ]
    codes = {end.code for number, end in enumerate(ends[:NODES]) if f"n{number}" not in struck}
    return [*wrong, *([f"exit codes {codes} of nodes without a fault"] if len(codes) > 1 else [])]


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
