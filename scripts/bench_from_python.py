"""Time calls from Python, side by side with other packages that call functions on ranks.

``launch`` is measured against ``torch.multiprocessing.spawn`` and torchrunx: ranks that import torch,
join with gloo, do one all_reduce, and end. ``--workers 2 8`` also measures ``Workers`` of 2 and of 8
ranks, against the actors of Monarch and of Ray: the start to the end of the first call, to the end of
the first all_reduce, and then calls of ranks that live on.

Each is measured inside a program that has imported torch already, as a notebook or a sweep has, and
calls functions of ``__main__``. Ranks and actors have imported torch when their first call returns.
Arguments of 100 MB are put into Ray's object store once a call, and what its ranks return is read
from there without a copy. CPU time includes what the packages do in the background meanwhile. Every
program has OMP_NUM_THREADS=1.

CPU seconds are those of all processes that a program has started, daemons too: of a cgroup (v2) of
its own, if one can be made; otherwise of its descendants and of those that they have waited for.

The packages that are compared are taken from the interpreter that ``--peers`` names; what it can't
import is left out::

    python3 -m venv peers
    peers/bin/pip install psutil torch ray torchmonarch torchrunx
    python scripts/bench_from_python.py --runs 5 --workers 2 8 --peers peers/bin/python
"""

import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from side_by_side import SECONDS_TO_END, Measured, medians, parser, row, shown, started

ON_RANKS = """
import os, sys
import torch
import torch.distributed as dist

RANKS, CALLS = map(int, sys.argv[1:3])

def join():
    dist.init_process_group("gloo")

def join_as(rank, world, port):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.set_num_threads(1)
    join()

def reduce():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total == dist.get_world_size()

def join_and_reduce():
    join()
    reduce()
    dist.destroy_process_group()

def join_as_and_reduce(rank, world, port):
    join_as(rank, world, port)
    reduce()
    dist.destroy_process_group()

def empty():
    pass

def give(size):
    kept = globals().setdefault("kept_tensors", {})
    if size not in kept:
        kept[size] = torch.ones(size, dtype=torch.uint8)
    return kept[size]

def take(tensor):
    return len(tensor)
"""

MEASURE = """
if __name__ == "__main__":
    import json, socket, statistics, time

    # torchrunx leaves logs in the current folder.
    os.chdir(os.path.dirname(os.path.abspath(__file__)))

    def joined_cgroup():
        for folder in sys.argv[3:]:
            try:
                with open(folder + "/cgroup.procs", "w") as file:
                    file.write(str(os.getpid()))
                return folder
            except OSError:
                pass
        return None

    CGROUP = joined_cgroup()
    if CGROUP is None:
        import psutil

    def cpu_seconds():
        if CGROUP is not None:
            with open(CGROUP + "/cpu.stat") as file:
                return int(dict(map(str.split, file))["usage_usec"]) / 1e6
        this, total = psutil.Process(), 0.0
        for process in [this, *this.children(recursive=True)]:
            try:
                total += sum(process.cpu_times()[:4])
            except psutil.NoSuchProcess:
                pass
        return total

    def free_port():
        with socket.socket() as sock:
            sock.bind(("", 0))
            return sock.getsockname()[1]

    FOUND = {"cpu_of": "descendants" if CGROUP is None else "cgroup"}

    def note(name, figures):
        FOUND[name] = figures
        print(json.dumps(FOUND), flush=True)

    def timed(call, times=1):
        cpu, seconds = cpu_seconds(), []
        for _ in range(times):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds), (cpu_seconds() - cpu) / times

    def measure(start):
        cpu, began = cpu_seconds(), time.perf_counter()
        call = start()
        assert len(call("empty")) == RANKS
        note("start", (time.perf_counter() - began, cpu_seconds() - cpu))
        call("join", free_port())
        call("reduce")
        note("ready", (time.perf_counter() - began, cpu_seconds() - cpu))
        note("empty", timed(lambda: call("empty"), CALLS))
        note("reduce", timed(lambda: call("reduce"), CALLS))
        for size in 1_000_000, 100_000_000:
            times = CALLS if size < 10_000_000 else max(1, CALLS // 10)
            assert [len(each) for each in call("give", size)] == [size] * RANKS
            note(f"give {size}", timed(lambda: call("give", size), times))
            tensor = torch.ones(size, dtype=torch.uint8)
            assert call("take", tensor) == [size] * RANKS
            note(f"take {size}", timed(lambda: call("take", tensor), times))
"""

MULTIPROCESSING = "torch.multiprocessing.spawn"
TORCHRUNX = "torchrunx"

LAUNCHERS = {
    "launch": """
    import clusterrun
    note("launch", timed(lambda: clusterrun.launch(join_and_reduce, nproc_per_node=RANKS)))
""",
    MULTIPROCESSING: """
    import torch.multiprocessing
    args = RANKS, free_port()
    note("launch", timed(lambda: torch.multiprocessing.spawn(join_as_and_reduce, args, nprocs=RANKS)))
""",
    TORCHRUNX: """
    import torchrunx
    one_thread = {"OMP_NUM_THREADS": "1"}
    launcher = torchrunx.Launcher(["localhost"], RANKS, backend=None, extra_env_vars=one_thread)
    note("launch", timed(lambda: launcher.run(join_and_reduce)))
""",
}

WORKERS = {
    "Workers": """
    import clusterrun

    def start():
        global workers
        workers = clusterrun.Workers(RANKS)
        functions = {"join": lambda port: join(), "empty": empty, "reduce": reduce, "give": give, "take": take}
        return lambda name, *args: workers.run(functions[name], *args)

    measure(start)
    workers.close()
""",
    "Monarch": """
    from monarch.actor import Actor, current_rank, endpoint, shutdown_context, this_host

    class Rank(Actor):
        @endpoint
        def join(self, port):
            join_as(current_rank().rank, RANKS, port)

        @endpoint
        def empty(self):
            empty()

        @endpoint
        def reduce(self):
            reduce()

        @endpoint
        def give(self, size):
            return give(size)

        @endpoint
        def take(self, tensor):
            return take(tensor)

    def start():
        ranks = this_host().spawn_procs(per_host={"ranks": RANKS}).spawn("ranks", Rank)

        def call(name, *args):
            return [value for _, value in getattr(ranks, name).call(*args).get()]

        return call

    measure(start)
    shutdown_context().get()
""",
    "Ray": """
    import ray

    @ray.remote
    class Rank:
        def __init__(self, rank):
            self.rank = rank

        def join(self, port):
            join_as(self.rank, RANKS, port)

        def empty(self):
            empty()

        def reduce(self):
            reduce()

        def give(self, size):
            return give(size)

        def take(self, tensor):
            return take(tensor)

    def start():
        ray.init(num_cpus=RANKS, include_dashboard=False, log_to_driver=False, _temp_dir=os.getcwd())
        ranks = [Rank.remote(rank) for rank in range(RANKS)]

        def call(name, *args):
            args = [ray.put(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
            return ray.get([getattr(rank, name).remote(*args) for rank in ranks])

        return call

    measure(start)
    ray.shutdown()
""",
}

MODULES = {TORCHRUNX: "torchrunx", "Monarch": "monarch.actor", "Ray": "ray"}
"""What is imported from the interpreter of ``--peers``."""


class Figure(NamedTuple):
    """Wall and CPU time of something; the numbers in parentheses are ranks."""

    name: str
    what: str
    unit: str = "ms"


LAUNCH_FIGURES = [Figure("launch", "launch of {} ranks that do an all_reduce", "s")]

WORKERS_FIGURES = [
    Figure("start", "start of {} ranks, to the end of an empty call", "s"),
    Figure("ready", "start of {} ranks, to the end of the first all_reduce", "s"),
    Figure("empty", "empty call of {} ranks"),
    Figure("reduce", "all_reduce of one float, {} ranks, group kept"),
    Figure("give 1000000", "1 MB from each of {} ranks"),
    Figure("take 1000000", "1 MB to each of {} ranks"),
    Figure("give 100000000", "100 MB from each of {} ranks"),
    Figure("take 100000000", "100 MB to each of {} ranks"),
]


def main() -> None:
    """Measure, then print the medians."""
    arguments = parser("Time functions on ranks.", nproc=8)
    arguments.add_argument(
        "--workers", type=int, nargs="*", default=[], help="numbers of ranks that live on"
    )
    arguments.add_argument("--calls", type=int, default=50, help="of each kind; a tenth of 100 MB")
    arguments.add_argument(
        "--peers", default=sys.executable, help="a Python that has torchrunx, Monarch and Ray"
    )
    options = arguments.parse_args()
    measure = partial(measured, options.runs, options.calls, options.peers)
    launched = measure(LAUNCHERS, LAUNCH_FIGURES, options.nproc)
    print_pairs(launched, options.nproc)
    for ranks in options.workers:
        print_table(measure(WORKERS, WORKERS_FIGURES, ranks), ranks)


def measured(  # noqa: PLR0913, PLR0917 - the first three are options
    runs: int,
    calls: int,
    peers: str,
    programs: Mapping[str, str],
    figures: Sequence[Figure],
    ranks: int,
) -> dict[str, Measured]:
    """Return the medians of programs that run in turn: of each figure, wall and CPU time in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        measures: dict[str, Callable[[], Measured]] = {
            name: partial(
                times_of,
                [peers if name in MODULES else sys.executable],
                written_program(Path(folder), name, program),
                figures,
                [str(ranks), str(calls)],
            )
            for name, program in programs.items()
            if name not in MODULES or can_import(peers, name)
        }
        return medians(runs, measures, warm_up=False)


def can_import(python: str, name: str) -> bool:
    """Return whether an interpreter can import a package; say so if it can't."""
    with started([python, "-c", f"import {MODULES[name]}"]) as job:
        is_there = job.exit_code(SECONDS_TO_END) == 0
    if not is_there:
        print(f"{python} can't import {MODULES[name]}: {name} is left out", file=sys.stderr)
    return is_there


def written_program(folder: Path, name: str, program: str) -> Path:
    """Return a program's file, in a folder of its own."""
    path = folder / re.sub("[^a-z]+", "_", name.lower()) / "program.py"
    path.parent.mkdir()
    path.write_text(ON_RANKS + MEASURE + program)
    return path


def times_of(
    python: Sequence[str], program: Path, figures: Sequence[Figure], numbers: Sequence[str]
) -> Measured:
    """Return what a program has measured; ``math.inf`` for what it has not come to."""
    with own_cgroup() as cgroup, tempfile.TemporaryFile() as stdout:
        words = [*python, str(program), *numbers, *map(str, cgroup)]
        with started(words, stdout) as job:
            code = job.exit_code(SECONDS_TO_END)
            if code != 0:
                job.complain("did not end" if code is None else f"ended with {code}")
        stdout.seek(0)
        lines = [line for line in stdout.read().splitlines() if line.startswith(b'{"cpu_of"')]
    found = json.loads(lines[-1]) if lines else {}
    if found.get("cpu_of") == "descendants":
        print(f"{program.parent.name}: CPU seconds of descendants, no cgroup", file=sys.stderr)
    missing = (math.inf, math.inf)
    return tuple(time for figure in figures for time in found.get(figure.name, missing))


@contextmanager
def own_cgroup() -> Iterator[list[Path]]:
    """Make a cgroup (v2) below that of this process, and remove it with all that is in it.

    Yields:
        its folder; none if it can't be made.

    """
    folder = cgroup_folder()
    try:
        made = [Path(tempfile.mkdtemp(prefix="clusterrun_bench_", dir=folder))] if folder else []
    except OSError:
        made = []
    try:
        yield made
    finally:
        for each in made:
            remove_cgroup(each)


def cgroup_folder() -> Path | None:
    """Return the folder of this process's cgroup (v2); None: there is none."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    roots = [Path(where) for _, where, kind, *_ in mounts if kind == "cgroup2"]
    cgroups = Path("/proc/self/cgroup").read_text().splitlines()
    within = [line.removeprefix("0::/") for line in cgroups if line.startswith("0::/")]
    return roots[0] / within[0] if roots and within else None


def remove_cgroup(folder: Path) -> None:
    """Kill what is left in a cgroup, and remove it as soon as the kernel allows."""
    deadline = time.monotonic() + SECONDS_TO_END / 10
    while folder.exists() and time.monotonic() < deadline:
        with suppress(OSError):
            (folder / "cgroup.kill").write_text("1")
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)


def print_pairs(found: Mapping[str, Measured], ranks: int) -> None:
    """Print a row of a Markdown table for each other launcher, then those of CPU time."""
    ours, *others = found
    for index, kind in enumerate(["", ", CPU time"]):
        for name in others:
            what = f"{LAUNCH_FIGURES[0].what.format(ranks)}, and {name}{kind}"
            print(row(what, found[ours][index], found[name][index]), flush=True)


def print_table(found: Mapping[str, Measured], ranks: int) -> None:
    """Print a Markdown table: ours, and of each other package the time and how much longer it is."""
    ours, *others = found
    print("\n| what | " + " | ".join([ours, *(f"{name} | ratio" for name in others)]) + " |")
    print("|" + " --- |" * (2 + 2 * len(others)))
    for number, figure in enumerate(WORKERS_FIGURES):
        for index, kind in enumerate(["", ", CPU time"]):
            times = {name: taken[2 * number + index] for name, taken in found.items()}
            print(table_row(figure.what.format(ranks) + kind, figure.unit, times), flush=True)


def table_row(what: str, unit: str, times: Mapping[str, float]) -> str:
    """Return a row: the first time, and each other one with the quotient of both."""
    digits, factor = (1, 1000) if unit == "ms" else (2, 1)
    ours, *others = times.values()
    cells = [what, shown(ours * factor, unit, digits)]
    for theirs in others:
        is_known = ours > 0 and math.isfinite(ours) and math.isfinite(theirs)
        ratio = f"{theirs / ours:.1f} times" if is_known else "-"
        cells += [shown(theirs * factor, unit, digits), ratio]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
