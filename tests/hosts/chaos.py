"""Rounds of random faults: what one round does to a job, and how its outcome is read.

A round is drawn from its number alone, so that a failed one can be repeated.
"""

import json
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.contract.launched import Ended, Job, kill_marked
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, ended
from tests.hosts.stepping_ranks import RANKS_STEP

STEPS_TOGETHER = (
    RANKS_STEP
    + """
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    fault = faults.get(str(rank)) if attempt == "0" else None
    if fault == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    print(f"rank {rank} begins", flush=True)
    for step in range(60):
        if step == 20 and fault == "raise":
            raise ValueError("a bad batch")
        if step == 20 and fault == "exit":
            sys.exit(7)
        if step == 20 and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        all_reduce()
        time.sleep(0.02)
    print(f"rank {rank} is done", flush=True)
"""
)
"""No rank continues without the others; each prints a line when it has made all its steps."""

SILENT = 2
"""Seconds: ``--heartbeat-timeout`` of all rounds."""

SECONDS_TO_JOIN = 15
"""``--rdzv-timeout`` of all rounds."""

SECONDS_TO_END = 60.0
"""From the last fault to the end of all agents: more than the timeouts, the grace period and a
restart take together."""

HELPER_LOST = 7.0
"""Seconds: a helper that is stopped for so long ends the job."""

INSIDE = ("raise", "exit", "kill", "deaf")
"""What a worker may do to itself in its 20th step, or fail to do when it gets SIGTERM."""

KILLED = ("worker", "fork server", "relay", "agent", "node")
FROZEN = ("worker", "fork server", "relay", "agent")


@dataclass(frozen=True)
class Strike:
    """One fault from outside.

    Attributes:
        at: seconds after the beginning.
        what: "kill", "freeze", "end", "pause" or "cut".
        node: whom it strikes.
        whom: which of the node's processes, for "kill" and "freeze".
        seconds: how long a frozen process, a paused node or a cut lasts.
        number: the signal of an "end".

    """

    at: float
    what: str
    node: int
    whom: str = "agent"
    seconds: float = 0.0
    number: int = signal.SIGTERM


@dataclass(frozen=True)
class Round:
    """All faults of one round.

    Attributes:
        workers: how many each node has.
        options: of all nodes.
        inside: the words that tell workers what to do to themselves: "1=raise".
        strikes: from outside, by time.
        joined: whether strikes begin when all ranks make steps; else when the agents start.

    """

    workers: tuple[int, ...]
    options: tuple[str, ...]
    inside: tuple[str, ...]
    strikes: tuple[Strike, ...]
    joined: bool

    @property
    def disturbs_the_network(self) -> bool:
        """Whether a node may have been silent: then the parts of the job can't agree on a verdict."""
        return any(
            it.what == "cut" or (it.what == "freeze" and it.whom == "agent") for it in self.strikes
        )

    @property
    def spared(self) -> list[int]:
        """The nodes whose agents are not killed."""
        lost = {
            it.node for it in self.strikes if it.what == "kill" and it.whom in ("agent", "node")
        }
        return [node for node in range(len(self.workers)) if node not in lost]


def drawn(number: int) -> Round:
    """Return the round of this number."""
    dice = random.Random(number)
    workers = tuple(dice.choice((1, 1, 2)) for _ in range(dice.choice((2, 3, 3, 4))))
    options = ["--heartbeat-timeout", str(SILENT), "--rdzv-timeout", str(SECONDS_TO_JOIN)]
    options += ["--shutdown-timeout", "1"]
    options += ["--events", "events.%n"]
    options += ["--max-restarts", "1"] if dice.random() < 0.4 else []
    options += ["--start-method", dice.choice(("fork", "spawn"))]
    options += ["--log-dir", "logs"] if dice.random() < 0.3 else []
    inside: tuple[str, ...] = ()
    if dice.random() < 0.4:
        inside = (f"{dice.randrange(sum(workers))}={dice.choice(INSIDE)}",)
    count = dice.choice((0, 1, 1, 2) if inside else (1, 1, 2))
    strikes = sorted((_strike(dice, len(workers)) for _ in range(count)), key=lambda it: it.at)
    return Round(workers, tuple(options), inside, tuple(strikes), joined=dice.random() < 0.8)


def _strike(dice: random.Random, nodes: int) -> Strike:
    at, node = dice.uniform(0.0, 1.5), dice.randrange(nodes)
    match dice.choice(("kill", "kill", "kill", "freeze", "end", "pause", "cut")):
        case "kill":
            return Strike(at, "kill", node, dice.choice(KILLED))
        case "freeze":
            long = dice.choice((0.3, 1.0, 2.5 * SILENT, HELPER_LOST))
            return Strike(at, "freeze", node, dice.choice(FROZEN), long)
        case "end":
            return Strike(at, "end", node, number=dice.choice((signal.SIGTERM, signal.SIGINT)))
        case "pause":
            return Strike(at, "pause", node, seconds=1.5 * SILENT)
        case _:
            return Strike(at, "cut", node, seconds=dice.choice((0.5, 2.5 * SILENT)))


def play(round_: Round, nodes: Nodes, hosts: Sequence[Host], folder: Path) -> list[Ended]:
    """Start the job, inject the faults, and return how each of its nodes ended.

    Args:
        round_: what is to happen.
        nodes: starts the agents.
        hosts: theirs.
        folder: gets a folder for temporary files for each node: ``tmp0``...

    """
    place = ("--nnodes", str(len(round_.workers)), "--master-addr", hosts[0].address)
    jobs = []
    for rank, workers in enumerate(round_.workers):
        (folder / f"tmp{rank}").mkdir()
        words = (*place, *round_.options, "--node-rank", str(rank))
        environ = {"TMPDIR": str(folder / f"tmp{rank}")}
        jobs.append(nodes.start(rank, *words, workers=workers, args=round_.inside, environ=environ))
    if round_.joined:
        for job, workers in zip(jobs, round_.workers, strict=True):
            job.wait_for(r"rank \d+ begins", times=workers)
    began = time.monotonic()
    acts = [act for it in round_.strikes for act in _acts(it, jobs[it.node], hosts[it.node])]
    for at, act in sorted(acts, key=lambda timed: timed[0]):
        time.sleep(max(0.0, began + at - time.monotonic()))
        act()
    return ended(jobs, SECONDS_TO_END)


def _acts(strike: Strike, job: Job, host: Host) -> Iterator[tuple[float, Callable[[], None]]]:
    """Yield the actions of a fault, each with its time."""
    over = strike.at + strike.seconds
    match strike.what:
        case "kill" if strike.whom == "node":
            yield strike.at, lambda: kill_marked(job.mark)
        case "kill":
            yield strike.at, lambda: _send(job, strike.whom, signal.SIGKILL)
        case "freeze":
            yield strike.at, lambda: _send(job, strike.whom, signal.SIGSTOP)
            # The stopped process, whichever it is: others of this kind may have started since.
            yield over, lambda: _send_all(job, signal.SIGCONT)
        case "end":
            yield strike.at, lambda: _send(job, "agent", strike.number)
        case "pause":
            yield strike.at, lambda: _send(job, "agent", signal.SIGTSTP)
            yield over, lambda: _send(job, "agent", signal.SIGCONT)
        case _:
            yield strike.at, host.cut
            yield over, host.join


def _send(job: Job, whom: str, number: int) -> None:
    """Send a signal to the first process of this kind, if there is one."""
    with suppress(psutil.NoSuchProcess):
        for process in job.processes():
            if kind_of(process, job.agent) == whom:
                process.send_signal(number)
                return


def _send_all(job: Job, number: int) -> None:
    for process in job.processes():
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def kind_of(process: psutil.Process, agent: int) -> str:
    """Return "agent", "relay", "fork server", "worker" or, for all others, "helper"."""
    with suppress(psutil.NoSuchProcess):
        if process.pid == agent:
            return "agent"
        if process.name().startswith("clusterrun-rela"):
            return "relay"
        if process.ppid() == agent and "fork_server" in " ".join(process.cmdline()):
            return "fork server"
        parent = process.parent()
        if parent is not None and parent.ppid() == agent:
            return "worker"
    return "helper"


def verdicts(folder: Path) -> list[tuple[object, ...]]:
    """Return code, reason and cause of each node that joined and wrote how the job ended."""
    lines = [line for file in folder.glob("events.*") for line in file.read_text().splitlines()]
    ends = [record for line in lines if (record := json.loads(line))["event"] == "ended"]
    return [(end["code"], end["reason"], str(end.get("cause"))) for end in ends]
