"""Samples the main threads of a node's ranks for ``clusterrun slow``, in a child process of the agent.

py-spy, one process for each rank and window, reads their stacks from outside; /proc has the kernel's
counters. With ``--nonblocking`` py-spy stops no rank.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from clusterrun.bounds import as_line, as_load, as_name, as_share
from clusterrun.cpuset import CpuSet
from clusterrun.machine.cgroup import hierarchy_of
from clusterrun.machine.machine import GpuState
from clusterrun.machine.process_usage import STATE, SYSTEM_TICKS, USER_TICKS
from clusterrun.machine.tree import ROOT, KernelAnswers, Tree, parse_cpus, parse_number
from clusterrun.policy.activities import places_of, with_stacks
from clusterrun.policy.samples import WINDOWS, NodeSamples, RankSamples, WhyNoStacks, WindowSample
from clusterrun.workers.py_spy import PySpy

SAMPLES_PER_SECOND = 20
"""Of stacks, and of the states of main threads in /proc."""

STATES_PER_LOADER_STATE = 5
"""A node may have hundreds of DataLoader processes, so their states are read less often."""

MAX_LOADERS = 128
"""Child processes per rank whose states are read."""

SECONDS_FOR_PY_SPY_TO_END = 3.0
"""After a window, to print its samples. With another second for its end, the two windows stay within the
10 s that a query has beyond their length."""

_LINE = re.compile(r"(?:process \d+:.*?;)*thread \((\d+)\)(?:: [^;]*)?;(.*) (\d+)")
"""A line of py-spy's raw format: "thread (4711): MainThread;main (train.py:9);step (train.py:88) 95". With
--subprocesses the processes come first. The number in parentheses is the kernel's thread id."""

PRESSURES = ("cpu", "io", "memory")

Counters = Counter[tuple[int | str, str]]
"""The kernel's counters by name, of a process, a cgroup or a pressure file."""

CLOCK, BUSY_TICKS, ALL_TICKS = ("clock", "ns"), ("cpus", "busy"), ("cpus", "all")
"""Clock ticks of the CPUs that the ranks may use: busy ones, and all."""

Stacks = Counter[tuple[str, ...]]
"""How often each stack of a main thread was seen."""


def sample_node(  # noqa: PLR0913 - each argument is an option of the query
    pids: Mapping[int, int],
    py_spy: Path | None,
    seconds: float,
    windows: int = WINDOWS,
    *,
    children: bool = False,
    gpus: Mapping[int, tuple[GpuState, ...]] | None = None,
    root: Path = ROOT,
) -> NodeSamples:
    """Return the samples of the ranks on this node, about a second after the last window.

    The py-spy processes are in this process's group. None of them outlives its window by more than
    ``SECONDS_FOR_PY_SPY_TO_END``, unless it hangs in the kernel.

    Args:
        pids: process ids by rank.
        py_spy: the path of py-spy; None: this node has none, so only /proc is sampled.
        seconds: length of a window; rounded, at least 1, because py-spy takes whole seconds.
        windows: number of consecutive windows.
        children: also sample the stacks of the ranks' child processes, such as DataLoader workers; those
            of the last window are returned.
        gpus: the known states of each rank's GPUs.
        root: the directory with ``proc`` and ``sys``.

    """
    if not pids:
        return NodeSamples(ranks=(), cpus=1, busy=0.0, busy_by_job=0.0, pressure={})
    length = max(1, round(seconds))
    start = partial(_start_py_spy, py_spy, length, children=children) if py_spy else None
    statuses = [Tree(root).facts(f"proc/{pid}/status", ":") for pid in pids.values()]
    cpus = CpuSet.union_of(parse_cpus(each.get("Cpus_allowed_list", "")) for each in statuses)
    ranks = [
        RankSamples(rank, pid, windows=(), gpus=(gpus or {}).get(rank, ()))
        for rank, pid in sorted(pids.items())
    ]
    grown: Counters = Counter()
    for _ in range(windows):
        sampled, printed, counted = _sample_window(root, pids.values(), cpus, length, start)
        grown += counted
        ranks = [_with_window(root, it, sampled.get(it.pid), printed.get(it.pid)) for it in ranks]
    tree = Tree(root)
    ticks = max(1, grown[ALL_TICKS])
    used = sum(count for (_, name), count in grown.items() if name == "ticks")
    return NodeSamples(
        ranks=tuple(ranks),
        cpus=max(1, len(cpus)),
        busy=as_share(grown[BUSY_TICKS] / ticks),
        busy_by_job=as_share(used / ticks),
        pressure={
            name: as_share(1000 * grown[name, "total"] / grown[CLOCK])
            for name in PRESSURES
            if tree.text(f"proc/pressure/{name}")
        },
        ptrace_scope=tree.integer("proc/sys/kernel/yama/ptrace_scope"),
    )


def _with_window(
    root: Path,
    rank: RankSamples,
    window: WindowSample | None,
    printed: tuple[str, str | None] | None,
) -> RankSamples:
    """Add a window, if the rank ran in it, with the stacks that py-spy printed."""
    tree, pid = Tree(root), rank.pid
    if window is not None:
        text, problem = printed or ("", None)
        main, children = _stacks(text, pid)
        windows = (*rank.windows, with_stacks(window, main))
        rank = replace(rank, windows=windows, loader_places=places_of(children))
        if not main:
            why = _why_no_stacks(tree, pid, problem or "") if printed else WhyNoStacks.MISSING
            rank = replace(rank, why_no_stacks=why, problem=problem)
    return rank if _state(tree, pid) else replace(rank, why_no_stacks=WhyNoStacks.ENDED)


# One window.


def _sample_window(
    root: Path,
    pids: Iterable[int],
    cpus: CpuSet,
    seconds: int,
    start: Callable[[int], PySpy] | None,
) -> tuple[dict[int, WindowSample], dict[int, tuple[str, str | None]], Counters]:
    """Return, by pid, the windows of living ranks and py-spy's output; and the growth of the counters."""
    tree = Tree(root)
    loaders = {pid: _children(tree, pid)[:MAX_LOADERS] for pid in pids if _state(tree, pid)}
    groups = {pid: _cpu_groups(root, pid) for pid in loaders}
    before = _counters(root, loaders, groups, cpus)
    spies = {pid: start(pid) for pid in loaders} if start else {}
    states = _count_states(root, loaders, seconds)
    grown = _counters(root, loaders, groups, cpus) - before
    wall = grown[CLOCK]
    windows = {
        pid: WindowSample(
            cpu=as_share(grown[pid, "ran"] / wall),
            queue=as_share(grown[pid, "queued"] / wall),
            states=_shares(states[pid]),
            loader_queue=as_load(sum(grown[child, "queued"] for child in children) / wall),
            loaders=_shares(sum((states[child] for child in children), Counter())),
            throttled=_throttled(grown, groups[pid]),
        )
        for pid, children in loaders.items()
    }
    until = time.monotonic() + SECONDS_FOR_PY_SPY_TO_END
    return windows, {pid: _output_of(spy, until) for pid, spy in spies.items()}, grown


def _count_states(
    root: Path, loaders: Mapping[int, Iterable[int]], seconds: float
) -> defaultdict[int, Counter[str]]:
    """Return how often each state was seen for ``seconds``, by pid of a rank or a loader."""
    seen: defaultdict[int, Counter[str]] = defaultdict(Counter)
    until = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < until:
        tree = Tree(root)
        for pid, children in loaders.items():
            seen[pid][_wait_channel(tree, pid)] += 1
            for child in children if turn % STATES_PER_LOADER_STATE == 0 else ():
                seen[child][_state(tree, child)] += 1
        turn += 1
        time.sleep(1 / SAMPLES_PER_SECOND)
    return seen


def _counters(
    root: Path, pids: Iterable[int], groups: Mapping[int, Iterable[str]], cpus: CpuSet
) -> Counters:
    """Read the kernel's counters; subtract two readings to get the growth."""
    tree = Tree(root)
    counts: Counters = Counter({CLOCK: time.monotonic_ns()})
    for line in tree.text("proc/stat").splitlines():
        name, *words = line.split()
        if name.startswith("cpu") and parse_number(name[3:]) in cpus:
            # User, nice, system, idle, iowait, irq, softirq, steal; guests are in user and nice.
            ticks = [int(word) for word in words[:8]]
            counts[ALL_TICKS] += sum(ticks)
            counts[BUSY_TICKS] += sum(ticks) - sum(ticks[3:5])
    for name in PRESSURES:
        # The first line is "some avg10=0.00 ... total=27878575", in microseconds.
        some = tree.text(f"proc/pressure/{name}").partition("\n")[0]
        counts[name, "total"] = parse_number(some.rpartition("total=")[2]) or 0
    remaining = [*pids]
    while remaining:
        pid = remaining.pop()
        remaining += _children(tree, pid)
        used = _stat(tree, pid)[USER_TICKS : SYSTEM_TICKS + 1]
        counts[pid, "ticks"] = sum(map(int, used))
        # Nanoseconds in which the main thread ran, and was ready to run.
        times = tree.text(f"proc/{pid}/task/{pid}/schedstat").split()
        for name, nanoseconds in zip(("ran", "queued"), times, strict=False):
            counts[pid, name] = int(nanoseconds)
    for group in {each for of_rank in groups.values() for each in of_rank}:
        for name, text in tree.facts(f"{group}/cpu.stat", " ").items():
            counts[group, name] = parse_number(text) or 0
    return counts


def _throttled(grown: Counters, groups: Iterable[str]) -> float | None:
    """Return the share of time in which a CPU quota of these cgroups throttled a rank; None: no quota.

    The kernel sums the time over CPUs, so it may exceed that of each thread. The share of periods in
    which the quota was used up is an upper limit.
    """
    shares = []
    for group in groups:
        if periods := grown[group, "nr_periods"]:
            # Version 1 has nanoseconds, version 2 microseconds.
            nanoseconds = grown[group, "throttled_time"] + 1000 * grown[group, "throttled_usec"]
            shares.append(min(grown[group, "nr_throttled"] / periods, nanoseconds / grown[CLOCK]))
    return as_share(max(shares)) if shares else None


def _shares(counts: Counter[str]) -> dict[str, float]:
    """Return the share of each state; "", the state of an ended process, does not count."""
    del counts[""]
    total = counts.total()
    return {as_name(name): as_share(count / total) for name, count in counts.items()}


def _cpu_groups(root: Path, pid: int) -> tuple[str, ...]:
    """Return the cgroups that may give a process a CPU quota; they may differ from this process's."""
    answers = KernelAnswers(text={"proc/self/cgroup": Tree(root).text(f"proc/{pid}/cgroup")})
    hierarchy = hierarchy_of(Tree(root, answers), "cpu")
    return hierarchy.groups if hierarchy else ()


def _children(tree: Tree, pid: int) -> list[int]:
    threads = tree.names(f"proc/{pid}/task")
    texts = (tree.text(f"proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(word) for text in texts for word in text.split()]


def _stat(tree: Tree, pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name; [] if the process is gone."""
    return tree.text(f"proc/{pid}/stat").rpartition(")")[2].split()


def _state(tree: Tree, pid: int) -> str:
    """Return the letter of the process's state (proc_pid_stat(5)); "" if it has ended."""
    return "".join(_stat(tree, pid)[STATE : STATE + 1]).strip("ZX")


def _wait_channel(tree: Tree, pid: int) -> str:
    """Return the kernel function in which the main thread sleeps, or the letter of its state."""
    state = _state(tree, pid)
    function = tree.text(f"proc/{pid}/wchan").partition(".")[0] if state == "S" else ""
    # "0": it has been woken up since, or this kernel does not show it.
    return state if function in {"", "0"} else function


# py-spy.


def _start_py_spy(program: Path, seconds: int, pid: int, *, children: bool) -> PySpy:
    return PySpy(
        *(program, "record", "--pid", str(pid), "--duration", str(seconds)),
        *("--rate", str(SAMPLES_PER_SECOND), "--idle", "--nonblocking", "--threads"),
        *("--full-filenames", "--format", "raw", "--output", "/dev/stdout"),
        *(["--subprocesses"] if children else []),
    )


def _output_of(spy: PySpy, until: float) -> tuple[str, str | None]:
    """Return what py-spy prints until it ends, and its first error or None."""
    spy.wait(until)
    if spy.is_late:
        return "", (
            f"py-spy was still running {SECONDS_FOR_PY_SPY_TO_END:g} s after it should have exited"
        )
    lines = (line for line in spy.errors.splitlines() if line.strip())
    # Lines with "py-spy> " are progress messages.
    return spy.printed, next(
        (as_line(each) for each in lines if not each.startswith("py-spy> ")), None
    )


def _stacks(printed: str, pid: int) -> tuple[Stacks, Stacks]:
    """Return the stacks of a rank's main thread, and of its child processes' main threads."""
    main: Stacks = Counter()
    children: Stacks = Counter()
    for line in printed.splitlines():
        if match := _LINE.fullmatch(line):
            thread, frames, times = match.groups()
            if int(thread) == pid:
                main[tuple(frames.split(";"))] += int(times)
            elif f"process {thread}:" in line:
                children[tuple(frames.split(";"))] += int(times)
    return main, children


def _why_no_stacks(tree: Tree, pid: int, problem: str) -> WhyNoStacks:
    if "permission denied" in problem.lower() or "not permitted" in problem:
        return WhyNoStacks.REFUSED
    is_python = Path(tree.real(f"proc/{pid}/exe")).name.startswith("python")
    if "python" in problem and not is_python and "libpython" not in tree.text(f"proc/{pid}/maps"):
        return WhyNoStacks.NOT_PYTHON
    # py-spy also finds no Python if it can't read the memory.
    if "find python version" in problem and tree.integer("proc/sys/kernel/yama/ptrace_scope"):
        return WhyNoStacks.REFUSED
    return WhyNoStacks.FAILED
