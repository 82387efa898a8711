"""Rounds of random faults. The number of a round is its seed, so a failed one can be repeated."""

import json
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.contract.launched import Ended, Job, kill_marked
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, ended
from tests.hosts.stepping_ranks import RANKS_STEP

MAKE_STEPS = (
    RANKS_STEP
    + """
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    fault = faults.get(str(rank)) if attempt == "0" else None
    if fault == "ignore SIGTERM":
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
"""No rank continues without the others; each prints a line after its last step."""

HEARTBEAT_TIMEOUT = 2

RDZV_TIMEOUT = 15

SECONDS_TO_END = 60.0
"""From the last fault to the end of all agents: more than the timeouts, the grace period and a
restart take together."""

HELPER_TIMEOUT = 7.0
"""Seconds: a helper that is stopped for so long ends the job."""

WORKER_FAULTS = ("raise", "exit", "kill", "ignore SIGTERM")
"""Each of the first three happens in the worker's 20th step."""

KILLED = ("worker", "fork server", "relay", "agent", "node")
FROZEN = ("worker", "fork server", "relay", "agent")


@dataclass(frozen=True)
class Fault:
    """One fault that the test injects.

    Attributes:
        at: seconds after the beginning.
        kind: "kill", "freeze", "signal", "pause" or "cut".
        node: number of the node.
        process: which of the node's processes, for "kill" and "freeze".
        seconds: how long a "freeze", "pause" or "cut" lasts.
        number: of the "signal".

    """

    at: float
    kind: str
    node: int
    process: str = "agent"
    seconds: float = 0.0
    number: int = signal.SIGTERM


@dataclass(frozen=True)
class Round:
    """All faults of one round.

    Attributes:
        workers: how many each node has.
        options: of all nodes.
        worker_faults: arguments of the script, such as "1=raise".
        faults: ordered by time.
        is_running: whether faults begin when all ranks make steps; else when the agents start.

    """

    workers: tuple[int, ...]
    options: tuple[str, ...]
    worker_faults: tuple[str, ...]
    faults: tuple[Fault, ...]
    is_running: bool

    @property
    def disturbs_the_network(self) -> bool:
        """Whether a node may have been silent: then nodes may report different reasons."""
        return any(
            it.kind == "cut" or (it.kind == "freeze" and it.process == "agent")
            for it in self.faults
        )

    @property
    def nodes_with_agent(self) -> list[int]:
        """The nodes whose agents are not killed."""
        lost = {
            it.node for it in self.faults if it.kind == "kill" and it.process in ("agent", "node")
        }
        return [node for node in range(len(self.workers)) if node not in lost]


def random_round(number: int) -> Round:
    """Return the round of this number."""
    dice = random.Random(number)
    workers = tuple(dice.choice((1, 1, 2)) for _ in range(dice.choice((2, 3, 3, 4))))
    options = ["--heartbeat-timeout", str(HEARTBEAT_TIMEOUT), "--rdzv-timeout", str(RDZV_TIMEOUT)]
    options += ["--shutdown-timeout", "1"]
    options += ["--events", "events.%n"]
    options += ["--max-restarts", "1"] if dice.random() < 0.4 else []
    options += ["--start-method", dice.choice(("fork", "spawn"))]
    options += ["--log-dir", "logs"] if dice.random() < 0.3 else []
    worker_faults: tuple[str, ...] = ()
    if dice.random() < 0.4:
        worker_faults = (f"{dice.randrange(sum(workers))}={dice.choice(WORKER_FAULTS)}",)
    count = dice.choice((0, 1, 1, 2) if worker_faults else (1, 1, 2))
    faults = sorted((_random_fault(dice, len(workers)) for _ in range(count)), key=lambda it: it.at)
    return Round(
        workers, tuple(options), worker_faults, tuple(faults), is_running=dice.random() < 0.8
    )


def _random_fault(dice: random.Random, nodes: int) -> Fault:
    at, node = dice.uniform(0.0, 1.5), dice.randrange(nodes)
    match dice.choice(("kill", "kill", "kill", "freeze", "signal", "pause", "cut")):
        case "kill":
            return Fault(at, "kill", node, dice.choice(KILLED))
        case "freeze":
            long = dice.choice((0.3, 1.0, 2.5 * HEARTBEAT_TIMEOUT, HELPER_TIMEOUT))
            return Fault(at, "freeze", node, dice.choice(FROZEN), long)
        case "signal":
            return Fault(at, "signal", node, number=dice.choice((signal.SIGTERM, signal.SIGINT)))
        case "pause":
            return Fault(at, "pause", node, seconds=1.5 * HEARTBEAT_TIMEOUT)
        case _:
            return Fault(at, "cut", node, seconds=dice.choice((0.5, 2.5 * HEARTBEAT_TIMEOUT)))


TimedActions = Iterator[tuple[float, Callable[[], object]]]
"""Each action has its time, in seconds after the beginning."""


def run_round(round_: Round, nodes: Nodes, hosts: Sequence[Host], folder: Path) -> list[Ended]:
    """Start the job, inject the faults, and return the results of all nodes.

    ``folder`` gets a folder for temporary files of each node: ``tmp0``, ``tmp1``...
    """
    nnodes = ("--nnodes", str(len(round_.workers)))
    jobs = []
    for rank, workers in enumerate(round_.workers):
        (folder / f"tmp{rank}").mkdir()
        environ = {"TMPDIR": str(folder / f"tmp{rank}")}
        options, args = (*nnodes, *round_.options), round_.worker_faults
        jobs.append(nodes.join(rank, *options, workers=workers, args=args, environ=environ))
    if round_.is_running:
        for job, workers in zip(jobs, round_.workers, strict=True):
            job.wait_for(r"rank \d+ begins", times=workers)
    perform(
        action for it in round_.faults for action in _actions(it, jobs[it.node], hosts[it.node])
    )
    return ended(jobs, SECONDS_TO_END)


def perform(actions: Iterable[tuple[float, Callable[[], object]]]) -> None:
    """Perform actions at their times."""
    began = time.monotonic()
    for at, action in sorted(actions, key=lambda timed: timed[0]):
        time.sleep(max(0.0, began + at - time.monotonic()))
        action()


def _actions(fault: Fault, job: Job, host: Host) -> TimedActions:
    over = fault.at + fault.seconds
    match fault.kind:
        case "kill" if fault.process == "node":
            yield fault.at, lambda: kill_marked(job.mark)
        case "kill":
            yield fault.at, lambda: send_to_first(job, fault.process, signal.SIGKILL)
        case "freeze":
            frozen: list[psutil.Process] = []
            yield (
                fault.at,
                lambda: frozen.extend(send_to_first(job, fault.process, signal.SIGSTOP)),
            )
            yield over, lambda: resume(frozen)
        case "signal":
            yield fault.at, lambda: send_to_first(job, "agent", fault.number)
        case "pause":
            yield fault.at, lambda: send_to_first(job, "agent", signal.SIGTSTP)
            yield over, lambda: send_to_first(job, "agent", signal.SIGCONT)
        case _:
            yield fault.at, host.cut
            yield over, host.join


def send_to_first(job: Job, kind: str, number: int) -> list[psutil.Process]:
    """Send a signal to the first process of this kind, if there is one; return it in a list."""
    with suppress(psutil.NoSuchProcess):
        for process in job.processes():
            if kind_of(process, job.agent) == kind:
                process.send_signal(number)
                return [process]
    return []


def resume(frozen: Iterable[psutil.Process]) -> None:
    """Continue stopped processes. Newer processes of the same kind may have started."""
    for process in frozen:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


def kind_of(process: psutil.Process, agent: int) -> str:
    """Return "agent", "relay", "fork server", "worker", or "helper" for any other process."""
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


def reported_ends(folder: Path) -> list[tuple[object, ...]]:
    """Return exit code, reason and cause from the event file of each node that has them."""
    lines = [line for file in folder.glob("events.*") for line in file.read_text().splitlines()]
    ends = [record for line in lines if (record := json.loads(line))["event"] == "ended"]
    return [(end["code"], end["reason"], str(end.get("cause"))) for end in ends]
