"""Samples the main threads of a node's ranks for ``clusterrun slow``, in a child process of the agent.

py-spy reads their stacks from outside, one process a rank and window; /proc shows what the kernel counts.
With ``--nonblocking`` no rank is stopped for that, and nothing runs in a rank.
"""

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from clusterrun.bounds import as_line, as_load, as_name, as_share
from clusterrun.cpuset import CpuSet
from clusterrun.machine.cgroup import hierarchy_of
from clusterrun.machine.machine import GpuState
from clusterrun.machine.tree import ROOT, KernelAnswers, Tree, cpus_of, number_of
from clusterrun.policy.activities import places_of, with_stacks
from clusterrun.policy.samples import NodeSamples, RankSamples, WhyNoStacks, WindowSample
from clusterrun.processes import SECONDS_TO_DIE

SAMPLES_PER_SECOND = 20

SECONDS_BETWEEN_STATES = 0.05

STATES_PER_LOADER_STATE = 5
"""A node may have hundreds of DataLoader processes: their states are looked at more rarely."""

MOST_LOADERS = 128
"""Child processes of a rank whose states are looked at."""

SECONDS_FOR_PY_SPY_TO_END = 10.0
"""After a window: it has only to print."""

MOST_PRINTED = 16 << 20
"""Characters of py-spy's that are read of a rank and window: the first ones."""

NANOSECONDS = 1e9

_LINE = re.compile(r"(?:process \d+:.*?;)*thread \((\d+)\)(?:: [^;]*)?;(.*) (\d+)")
"""Of py-spy's raw format: "thread (4711): MainThread;main (train.py:9);step (train.py:88) 95"; with
--subprocesses the processes come before it. The number is that of the thread for the kernel."""

_BANNER = "py-spy> "
"""What it prints of itself."""

_ENDED_STATES = {"", "Z", "X"}

Stacks = Counter[tuple[str, ...]]
"""How often each stack of a main thread was seen."""


class _OneRank(Struct):
    """What is known of one rank so far."""

    pid: int
    windows: list[WindowSample] = field(default_factory=list)
    loaders: Stacks = field(default_factory=Counter)
    why_no_stacks: WhyNoStacks | None = None
    problem: str | None = None


class Sampling(Struct, frozen=True):
    """How a node is sampled."""

    length: float
    """Seconds of a window; py-spy takes whole ones, at least 1."""
    windows: int = 2
    """How many follow each other."""
    children: bool = False
    """Also sample the stacks of the ranks' child processes, as those of their DataLoaders."""


def sample_node(
    pids: Mapping[int, int],
    py_spy: Path | None,
    sampling: Sampling,
    gpus: Mapping[int, tuple[GpuState, ...]] | None = None,
    root: Path = ROOT,
) -> NodeSamples:
    """Return the samples of ranks that run on this node, after the windows and a second or so.

    It starts processes in this process's group. None of them outlives its window by more than
    ``SECONDS_FOR_PY_SPY_TO_END``, unless it hangs in the kernel.

    Args:
        pids: process ids by rank.
        py_spy: its path; None: this node has none, and only what /proc shows is sampled.
        sampling: how.
        gpus: the states of each rank's GPUs, as far as they are known.
        root: what has ``proc`` and ``sys``.

    """
    if not pids:
        return NodeSamples(ranks=(), cpus=1, busy=0.0, busy_by_job=0.0, pressure={})
    seconds = max(1, round(sampling.length))
    ranks = {rank: _OneRank(pid) for rank, pid in pids.items()}
    cpus = _cpus_of(root, pids.values())
    before = _Counters.read(root, pids.values(), cpus)
    for _ in range(sampling.windows):
        _sample_window(root, ranks, py_spy, seconds, children=sampling.children)
    after = _Counters.read(root, pids.values(), cpus)
    wall = after.at - before.at
    ticks = max(1.0, after.all_ticks - before.all_ticks)
    by_job = sum(max(0.0, used - before.by_job.get(pid, 0.0)) for pid, used in after.by_job.items())
    return NodeSamples(
        ranks=tuple(
            RankSamples(
                rank=rank,
                pid=known.pid,
                windows=tuple(known.windows),
                why_no_stacks=known.why_no_stacks,
                problem=known.problem,
                loader_places=places_of(known.loaders),
                gpus=(gpus or {}).get(rank, ()),
            )
            for rank, known in sorted(ranks.items())
        ),
        cpus=max(1, len(cpus)),
        busy=as_share((after.busy_ticks - before.busy_ticks) / ticks),
        busy_by_job=as_share(by_job / (wall * max(1, len(cpus)))),
        pressure={
            name: as_share((after.pressure[name] - micros) / 1e6 / wall)
            for name, micros in before.pressure.items()
            if name in after.pressure
        },
        ptrace_scope=Tree(root).integer("proc/sys/kernel/yama/ptrace_scope"),
    )


# The whole node.


class _Counters(Struct, frozen=True):
    """The kernel's counters of the node at one time."""

    at: float
    """Seconds of a monotonic clock."""
    busy_ticks: int
    """Of the CPUs that the ranks may use."""
    all_ticks: int
    by_job: dict[int, float]
    """CPU seconds by process: the ranks and their descendants."""
    pressure: dict[str, int]
    """Microseconds in which a task waited."""

    @classmethod
    def read(cls, root: Path, pids: Iterable[int], cpus: CpuSet) -> "_Counters":
        tree = Tree(root)
        busy, total = _ticks(tree, cpus)
        pressure = {
            name: micros
            for name in ("cpu", "io", "memory")
            if (micros := _pressure(tree, name)) is not None
        }
        by_job = {pid: _cpu_seconds(tree, pid) for pid in _descendants(tree, pids)}
        return cls(time.monotonic(), busy, total, by_job, pressure)


def _cpus_of(root: Path, pids: Iterable[int]) -> CpuSet:
    """Return the CPUs that these processes may use."""
    tree = Tree(root)
    masks = (tree.facts(f"proc/{pid}/status", ":").get("Cpus_allowed_list", "") for pid in pids)
    return CpuSet(cpu for mask in masks for cpu in cpus_of(mask))


def _ticks(tree: Tree, cpus: Collection[int]) -> tuple[int, int]:
    """Return how long these CPUs were in use, and the whole time, in ticks: see proc_stat(5)."""
    busy = total = 0
    for line in tree.text("proc/stat").splitlines():
        name, *words = line.split()
        if name.startswith("cpu") and number_of(name[3:]) in cpus:
            # User, nice, system, idle, iowait, irq, softirq, steal; guests are in user and nice.
            ticks = [int(word) for word in words[:8]]
            total += sum(ticks)
            busy += sum(ticks) - sum(ticks[3:5])
    return busy, total


def _pressure(tree: Tree, name: str) -> int | None:
    # The first line is "some avg10=0.00 ... total=27878575", in microseconds.
    lines = tree.text(f"proc/pressure/{name}").splitlines()
    return number_of(lines[0].rpartition("total=")[2]) if lines else None


def _cpu_seconds(tree: Tree, pid: int) -> float:
    """Return the CPU time of a process, all its threads."""
    fields = tree.text(f"proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _ticks_per_second() if len(fields) > 12 else 0.0


def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")


def _descendants(tree: Tree, pids: Iterable[int]) -> list[int]:
    found: list[int] = []
    left = [*pids]
    while left:
        pid = left.pop()
        found.append(pid)
        left += _children(tree, pid)
    return found


def _children(tree: Tree, pid: int) -> list[int]:
    threads = tree.names(f"proc/{pid}/task")
    texts = (tree.text(f"proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(word) for text in texts for word in text.split()]


# One window.


class _Scheduled(Struct, frozen=True):
    """How long a main thread ran and was ready to run, in ns: /proc/PID/task/PID/schedstat."""

    ran: int = 0
    queued: int = 0


class _Throttle(Struct, frozen=True):
    """What a CPU quota has held up in a cgroup: cpu.stat."""

    seconds: float
    """Summed over CPUs."""
    periods: int
    throttled_periods: int


class _Edge(Struct, frozen=True):
    """The kernel's counters of one rank at one edge of a window."""

    at: float
    own: _Scheduled
    loaders: dict[int, _Scheduled]
    throttle: dict[str, _Throttle]
    """By cgroup: a rank's own, and those around it."""

    @classmethod
    def read(cls, root: Path, pid: int, loaders: Iterable[int]) -> "_Edge":
        tree = Tree(root)
        return cls(
            time.monotonic(),
            _scheduled(tree, pid),
            {each: _scheduled(tree, each) for each in loaders},
            _throttle(root, tree, pid),
        )


class _SeenStates(Struct):
    """How often a rank and its child processes were seen in each state."""

    own: Counter[str] = field(default_factory=Counter)
    loaders: Counter[str] = field(default_factory=Counter)


def _sample_window(
    root: Path,
    ranks: Mapping[int, _OneRank],
    py_spy: Path | None,
    seconds: int,
    *,
    children: bool,
) -> None:
    """Add one window to each rank that runs."""
    tree = Tree(root)
    running = [each for each in ranks.values() if _state(tree, each.pid) not in _ENDED_STATES]
    for each in ranks.values():
        if each not in running:
            each.why_no_stacks = WhyNoStacks.ENDED
    loaders = {each.pid: _children(tree, each.pid)[:MOST_LOADERS] for each in running}
    before = {each.pid: _Edge.read(root, each.pid, loaders[each.pid]) for each in running}
    spies = {each.pid: _PySpy(py_spy, each.pid, seconds, children=children) for each in running}
    states = _watched_states(root, loaders, seconds)
    until = time.monotonic() + SECONDS_FOR_PY_SPY_TO_END
    for spy in spies.values():
        spy.wait(until)
    tree = Tree(root)
    for each in running:
        spy, edge = spies[each.pid], before[each.pid]
        window = _window(edge, _Edge.read(root, each.pid, edge.loaders), states[each.pid])
        main, others = spy.stacks()
        each.windows.append(with_stacks(window, main))
        each.loaders.update(others)
        if not main:
            each.why_no_stacks = _why_no_stacks(root, tree, each.pid, spy)
            each.problem = spy.problem
        if _state(tree, each.pid) in _ENDED_STATES:
            each.why_no_stacks = WhyNoStacks.ENDED


def _watched_states(
    root: Path, loaders: Mapping[int, Collection[int]], seconds: float
) -> dict[int, _SeenStates]:
    """Look at the states of main threads, by process id, until the time is over."""
    seen = {pid: _SeenStates() for pid in loaders}
    until = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < until:
        tree = Tree(root)
        for pid, children in loaders.items():
            if (state := _sleeps_in(tree, pid)) not in _ENDED_STATES:
                seen[pid].own[state] += 1
            if turn % STATES_PER_LOADER_STATE == 0:
                states = (_state(tree, child) for child in children)
                seen[pid].loaders.update(each for each in states if each not in _ENDED_STATES)
        turn += 1
        time.sleep(SECONDS_BETWEEN_STATES)
    return seen


def _window(before: _Edge, after: _Edge, states: _SeenStates) -> WindowSample:
    wall = (after.at - before.at) * NANOSECONDS
    loader_queue = sum(
        max(0, after.loaders[pid].queued - earlier.queued)
        for pid, earlier in before.loaders.items()
    )
    return WindowSample(
        cpu=as_share((after.own.ran - before.own.ran) / wall),
        queue=as_share((after.own.queued - before.own.queued) / wall),
        states=_as_shares(states.own),
        loader_queue=as_load(loader_queue / wall),
        loaders=_as_shares(states.loaders),
        throttled=_throttled(before, after),
    )


def _as_shares(counts: Counter[str]) -> dict[str, float]:
    total = counts.total()
    return {as_name(name): as_share(count / total) for name, count in counts.items()}


def _throttled(before: _Edge, after: _Edge) -> float | None:
    """Return how much of the time a quota held the rank up; None: there is none.

    The kernel sums the time over CPUs, so on many CPUs it exceeds that of each thread: never more than
    the part of the periods in which the quota was used up.
    """
    shares = []
    for group, later in after.throttle.items():
        earlier = before.throttle.get(group)
        if earlier is None or later.periods <= earlier.periods:
            continue
        periods = later.periods - earlier.periods
        throttled = (later.throttled_periods - earlier.throttled_periods) / periods
        shares.append(min(throttled, (later.seconds - earlier.seconds) / (after.at - before.at)))
    return as_share(max(shares)) if shares else None


def _scheduled(tree: Tree, pid: int) -> _Scheduled:
    words = tree.text(f"proc/{pid}/task/{pid}/schedstat").split()
    return _Scheduled(int(words[0]), int(words[1])) if len(words) > 1 else _Scheduled()


def _throttle(root: Path, tree: Tree, pid: int) -> dict[str, _Throttle]:
    """Return what quotas have held up in the cgroups of a process, which may differ from ours."""
    as_ours = KernelAnswers(text={"proc/self/cgroup": tree.text(f"proc/{pid}/cgroup")})
    hierarchy = hierarchy_of(Tree(root, as_ours), "cpu")
    found = {}
    for group in hierarchy.groups if hierarchy else ():
        facts = {key: number_of(text) for key, text in tree.facts(f"{group}/cpu.stat", " ").items()}
        nanoseconds, microseconds = facts.get("throttled_time"), facts.get("throttled_usec")
        if nanoseconds is not None or microseconds is not None:
            found[group] = _Throttle(
                (nanoseconds or 0) / NANOSECONDS + (microseconds or 0) / 1e6,
                facts.get("nr_periods") or 0,
                facts.get("nr_throttled") or 0,
            )
    return found


def _state(tree: Tree, pid: int) -> str:
    """Return the letter of its main thread's state, as in proc_pid_stat(5); "" if it is gone."""
    return next(iter(tree.text(f"proc/{pid}/stat").rpartition(")")[2].split()), "")


def _sleeps_in(tree: Tree, pid: int) -> str:
    """Return the kernel's function in which its main thread sleeps, or the letter of its state."""
    state = _state(tree, pid)
    if state != "S":
        return state
    function = tree.text(f"proc/{pid}/wchan").partition(".")[0]
    # "0": it has been woken up since, or this kernel does not tell.
    return state if function in {"", "0"} else function


# py-spy.


class _PySpy:
    """One py-spy, which samples one rank for one window."""

    def __init__(self, program: Path | None, pid: int, seconds: int, *, children: bool) -> None:
        self.problem: str | None = None
        self.is_missing = program is None
        self._pid = pid
        self._text = ""
        self._process: subprocess.Popen[str] | None = None
        if program is None:
            return
        words = [
            *(str(program), "record", "--pid", str(pid), "--duration", str(seconds)),
            *("--rate", str(SAMPLES_PER_SECOND), "--idle", "--nonblocking", "--threads"),
            *("--full-filenames", "--format", "raw", "--output", "/dev/stdout"),
            *(["--subprocesses"] if children else []),
        ]
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            self.problem = as_line(f"py-spy can't be started: {error.strerror}")

    def wait(self, until: float) -> None:
        """Read what it prints until it ends; kill it at this time of ``time.monotonic``."""
        if self._process is None:
            return
        try:
            self._text, errors = self._process.communicate(
                timeout=max(0.0, until - time.monotonic())
            )
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.problem = f"py-spy has not ended {SECONDS_FOR_PY_SPY_TO_END:g} s after its time"
            with suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=SECONDS_TO_DIE)
            return
        lines = (line for line in errors.splitlines() if line.strip())
        self.problem = next((as_line(it) for it in lines if not it.startswith(_BANNER)), None)

    def stacks(self) -> tuple[Stacks, Stacks]:
        """Return the stacks of the rank's main thread, and those of its child processes' main threads."""
        main: Stacks = Counter()
        others: Stacks = Counter()
        for line in self._text[:MOST_PRINTED].splitlines():
            if match := _LINE.fullmatch(line):
                thread, frames, times = match.groups()
                if int(thread) == self._pid:
                    main[tuple(frames.split(";"))] += int(times)
                elif f"process {thread}:" in line:
                    others[tuple(frames.split(";"))] += int(times)
        return main, others


def _why_no_stacks(root: Path, tree: Tree, pid: int, spy: _PySpy) -> WhyNoStacks:
    problem = spy.problem or ""
    if spy.is_missing:
        return WhyNoStacks.MISSING
    if "permission denied" in problem.lower() or "not permitted" in problem:
        return WhyNoStacks.REFUSED
    if "python" in problem and not _is_python(root, tree, pid):
        return WhyNoStacks.NOT_PYTHON
    # It finds no Python where it may read no memory, either.
    if "find python version" in problem and tree.integer("proc/sys/kernel/yama/ptrace_scope"):
        return WhyNoStacks.REFUSED
    return WhyNoStacks.FAILED


def _is_python(root: Path, tree: Tree, pid: int) -> bool:
    """Return whether a process runs Python: by its program's name, or because it has mapped libpython."""
    program = (root / f"proc/{pid}/exe").resolve()
    return program.name.startswith("python") or "libpython" in tree.text(f"proc/{pid}/maps")
