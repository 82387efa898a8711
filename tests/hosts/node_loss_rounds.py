"""Rounds of lost nodes in a job that survives them.

The number of a round is its seed, so a failed one can be repeated.
"""

import itertools
import json
import random
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from tests.contract.launched import Ended, Job, kill_marked
from tests.contract.worker_scripts import RANKS_RENDEZVOUS
from tests.hosts.fault_rounds import (
    HELPER_TIMEOUT,
    TimedActions,
    perform,
    resume,
    send_to_first,
)
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, ended
from tests.hosts.slow_link import SlowLink

NODES = 5
STEPS = 250
MODULUS = 2**61 - 1

SECONDS_TO_SAVE = 20

TRAIN = f"""{RANKS_RENDEZVOUS}
    import json, pathlib, signal, struct, sys

    def receive(call, count):
        data = call.recv(count, socket.MSG_WAITALL)
        if len(data) < count:
            raise ConnectionError("connection closed by peer")
        return struct.unpack("!q", data)[0]

    def all_reduced(value):
        total = value
        if rank == 0:
            total += sum(receive(call, 8) for call in calls)
        for call in calls:
            call.sendall(struct.pack("!q", total))
        return total if rank == 0 else receive(calls[0], 8)

    world = "-".join(os.environ[it] for it in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"))
    steps = open(f"worlds/{{os.uname().nodename}}-{{os.getpid()}}", "a", buffering=1)

    def save(*_):
        ends = time.monotonic() + {SECONDS_TO_SAVE}
        while time.monotonic() < ends:
            steps.write(f"{{world}} {{time.monotonic()}}\\n")
            time.sleep(0.02)
        sys.exit(1)

    if "save" in sys.argv:
        signal.signal(signal.SIGTERM, save)
    saved = pathlib.Path("checkpoint")
    step, weights = json.loads(saved.read_text()) if saved.exists() else (0, 1)
    print("begins at", step, flush=True)
    while step < {STEPS}:
        weights = (weights * 31 + all_reduced(step * (rank + 1))) % {MODULUS}
        steps.write(f"{{world}} {{time.monotonic()}}\\n")
        step += 1
        if rank == 0 and step % 5 == 0:
            pathlib.Path("unfinished").write_text(json.dumps([step, weights]))
            os.rename("unfinished", saved)
        time.sleep(0.02)
    # No rank exits before all have made all steps.
    all_reduced(0)
"""
"""Trains weights that depend on each step and each rank, and resumes from a checkpoint.

With the argument ``save``, ranks save for a long time after SIGTERM.
"""

HEARTBEAT_TIMEOUT = 1.5

SECONDS_TO_END = 120.0
"""From the last fault to the end of all agents."""

RESILIENCE = {
    "spares": ("--nnodes", "3", "--spares", "2"),
    "elastic": ("--nnodes", f"2:{NODES}", "--last-call-timeout", "2"),
    "rejoin": ("--nnodes", f"{NODES}", "--rejoin-timeout", "20"),
}

FIRST_NODES = {"spares": 3, "elastic": NODES, "rejoin": NODES}
"""The nodes of the first attempt."""

OPTIONS = (
    *("--heartbeat-timeout", str(HEARTBEAT_TIMEOUT), "--rdzv-timeout", "15"),
    # A rank fails if it notices the loss of its peer before its agent does.
    *("--max-restarts", "3", "--events", "events.%n"),
)


HELPERS = ("fork server", "relay")
FREEZES = ("agent", "worker", *HELPERS)

LINKS: Mapping[str, Mapping[str, float]] = {
    "slow": {"sends": 0.15, "gets": 0.15},
    "slow one way": {"sends": 0.4},
    "lossy": {"loss": 0.2},
}
"""Faults of a host's link, as arguments of ``SlowLink``."""


@dataclass(frozen=True)
class Loss:
    """One node that is lost, for some time or for ever.

    Attributes:
        at: seconds after all ranks have begun.
        how: "killed" (its agent), "restarted" (the agent is killed and started again), "node" (all its
            processes are killed), "frozen", "cut", "sends" (what it sends is lost), "receives" (what is
            sent to it is lost), or one of ``LINKS``.
        node: the number of its host.
        seconds: how long the fault lasts, if it ends.
        process: which process is frozen, one of ``FREEZES``.

    """

    at: float
    how: str
    node: int
    seconds: float = 0.0
    process: str = "agent"

    @property
    def is_final(self) -> bool:
        """Whether the agent is killed."""
        return self.how in {"killed", "restarted", "node"}


KILLED = re.compile(r"^clusterrun: .*rank \d+ .*was killed by")

LOST = re.compile(r"node \d+ \((n\d)\) (?:is gone|has been silent|was stopped|has lost its)")


@dataclass(frozen=True)
class Round:
    """How a job survives the loss of nodes, and which nodes it loses."""

    resilience: str
    losses: tuple[Loss, ...]
    saves: bool
    """Workers catch SIGTERM, and save for longer than a lease lasts."""


def random_round(number: int) -> Round:
    """Return the round of this number: one to three losses, some of them during a restart."""
    dice = random.Random(number)
    losses = [_random_loss(dice, dice.uniform(0.1, 1.0))]
    while len(losses) < 3 and dice.random() < 0.5:
        # At the same moment, while the workers stop and start, or when a silent node is noticed.
        later = dice.choice(
            (0.0, dice.uniform(0.0, 0.4), dice.uniform(HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_TIMEOUT))
        )
        loss = _random_loss(dice, losses[-1].at + later)
        if not any(_leaves_workers_alive(loss, it) for it in losses):
            losses.append(loss)
    return Round(dice.choice(tuple(RESILIENCE)), tuple(losses), saves=number % 3 == 0)


def _random_loss(dice: random.Random, at: float) -> Loss:
    how = dice.choice(
        (
            *("killed", "restarted", "node", "cut", "sends", "receives"),
            *("frozen", "frozen", "frozen"),
            *LINKS,
        )
    )
    process = dice.choice(("agent", *FREEZES))
    seconds = dice.choice((0.3, HEARTBEAT_TIMEOUT, 4 * HEARTBEAT_TIMEOUT))
    if process in HELPERS and seconds > HEARTBEAT_TIMEOUT:
        seconds = HELPER_TIMEOUT
    return Loss(at, how, dice.randrange(NODES), seconds, process)


def _leaves_workers_alive(one: Loss, other: Loss) -> bool:
    """Return whether no process may be left to kill the workers: docs/several_nodes.md, "Leases"."""
    both = (one, other)
    return (
        one.node == other.node
        and any(it.how == "frozen" and it.process == "fork server" for it in both)
        and any(it.is_final or (it.how == "frozen" and it.process == "agent") for it in both)
    )


class RunningRound:
    """The job of a round."""

    def __init__(self, round_: Round, nodes: Nodes, hosts: Sequence[Host], folder: Path) -> None:
        """Start it in ``folder``; all ranks have begun when this returns."""
        (folder / "worlds").mkdir()
        self._round, self._nodes, self._hosts = round_, nodes, hosts
        self.jobs = [self._start(node) for node in range(NODES)]
        """One for each node; then one for each node that was started again."""
        for job in self.jobs[: FIRST_NODES[round_.resilience]]:
            job.wait_for("begins at 0")

    def results(self) -> list[Ended]:
        """Inject the faults, and return the results of the agents, in the order of ``jobs``."""
        perform(action for loss in self._round.losses for action in self._actions(loss))
        return ended(self.jobs, SECONDS_TO_END)

    def _start(self, node: int) -> Job:
        shutdown = ("--shutdown-timeout", str(SECONDS_TO_SAVE if self._round.saves else 1))
        options = (*RESILIENCE[self._round.resilience], *OPTIONS, *shutdown)
        return self._nodes.join(node, *options, args=["save"] if self._round.saves else [])

    def _actions(self, loss: Loss) -> TimedActions:
        job, host, over = self.jobs[loss.node], self._hosts[loss.node], loss.at + loss.seconds
        others = [it for it in self._hosts if it is not host]
        match loss.how:
            case "killed":
                yield loss.at, lambda: _signal(job.agent, signal.SIGKILL)
            case "restarted":
                yield loss.at, lambda: _signal(job.agent, signal.SIGKILL)
                yield over, lambda: self.jobs.append(self._start(loss.node))
            case "node":
                yield loss.at, lambda: kill_marked(job.mark)
            case "frozen":
                frozen: list[psutil.Process] = []
                yield (
                    loss.at,
                    lambda: frozen.extend(send_to_first(job, loss.process, signal.SIGSTOP)),
                )
                yield over, lambda: resume(frozen)
            case "cut":
                yield loss.at, host.cut
                yield over, host.join
            case "sends":
                yield loss.at, lambda: host.mute(others)
                yield over, lambda: host.unmute(others)
            case "receives":
                yield from ((loss.at, partial(it.mute, [host])) for it in others)
                yield from ((over, partial(it.unmute, [host])) for it in others)
            case _:
                link = SlowLink(host, **LINKS[loss.how])
                yield loss.at, link.open
                yield over + HEARTBEAT_TIMEOUT, link.close


def _signal(pid: int, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).send_signal(number)


def wrong_ends(round_: Round, ends: Sequence[Ended]) -> list[str]:
    """Return messages and exit codes that are false in this round; empty if all are correct."""
    faulty = {f"n{loss.node}" for loss in round_.losses}
    killed = any(loss.how == "node" for loss in round_.losses)
    wrong = [
        f"agent {number}: {line}"
        for number, end in enumerate(ends)
        for line in end.err.splitlines()
        if (KILLED.search(line) and not killed)
        # A node that is cut off names node 0; if node 0 is cut off, it names any other.
        or ("n0" not in faulty and set(LOST.findall(line)) - {"n0", *faulty})
    ]
    helper = any(it.how == "frozen" and it.process in HELPERS for it in round_.losses)
    correct = {0, 4, 5, -signal.SIGKILL, *((137,) if helper else ())}
    wrong += [
        f"agent {i}: exit code {end.code}" for i, end in enumerate(ends) if end.code not in correct
    ]
    codes = {end.code for number, end in enumerate(ends[:NODES]) if f"n{number}" not in faulty}
    return [*wrong, *([f"exit codes {codes} of nodes without a fault"] if len(codes) > 1 else [])]


def weights_of(ranks: int) -> int:
    """Return the final weights of an undisturbed run with this number of ranks."""
    weights = 1
    for step in range(STEPS):
        weights = (weights * 31 + step * ranks * (ranks + 1) // 2) % MODULUS
    return weights


def checkpoint(folder: Path) -> tuple[int, int]:
    """Return the last saved step and its weights."""
    step, weights = json.loads((folder / "checkpoint").read_text())
    return step, weights


def overlapping_worlds(folder: Path) -> list[str]:
    """Return worlds that made steps at the same time; correct are none."""
    times: dict[str, list[float]] = {}
    for file in (folder / "worlds").iterdir():
        for line in file.read_text().splitlines():
            world, at = line.split(" ")
            times.setdefault(world, []).append(float(at))
    spans = sorted((min(at), max(at), world) for world, at in times.items())
    pairs = itertools.pairwise(spans)
    return [f"{one[2]} until {one[1]}, {two}" for one, two in pairs if one[1] > two[0]]
