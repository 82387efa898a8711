"""How often ``clusterrun slow`` names the right rank and cause, and what asking costs the job.

    scripts/bench_slow.py --out slow.jsonl              20 trials of each cause in each kind of job
    scripts/bench_slow.py --out slow.jsonl --minutes 30 some of them; the next call goes on
    scripts/bench_slow.py --out slow.jsonl --table      what they show
    scripts/bench_slow.py --cost 30 --kinds ddp         steps per second with and without, in pairs

One job serves the trials of a kind. A trial plants a cause in ranks drawn by its number, asks, and adds
a line of JSON to the file: the whole answer, and a digest of the code that is measured. Trials of other
code don't count. A quota and a throttled disk need root; without it, these causes are left out.
A slow host and a slow link need several hosts.
"""

import ast
import hashlib
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import NamedTuple, NoReturn

import clusterrun
import msgspec
import psutil
from clusterrun.policy.samples import Activity
from clusterrun.policy.slow import SlowVerdict, VerdictKind
from clusterrun.report.slow import SlowReport
from side_by_side import OURS, Job, command, exit_on_sigterm, started, written_by_all
from slow_plan import DATA_BYTES, Cause, Kind, Plan, StepCounter, data_file
from slow_planting import planted, why_impossible

PROGRAM = Path(__file__).with_name("slow_ranks.py")

MEASURED = ("policy/activities.py", "policy/slow.py", "workers/py_spy.py", "workers/sampler.py")
"""Modules whose change makes all trials anew; comments in them don't count."""

NPROC, LIGHT_NPROC = 4, 2

CPUS = 2
"""Four ranks and their loaders keep so few full, on any machine."""

SECONDS_SAMPLED = 10
"""By ``clusterrun slow``: two windows of half of that."""

SECONDS_TO_ANSWER = 90.0

SECONDS_TO_START = 180.0
"""Imports of four ranks, while others use the machine, too."""

STEPS_TO_WARM_UP = 40

SECONDS_TO_SETTLE = 1.5
"""After a change of the plan, beside some steps: batches that a loader has made before are used up."""

STEPS_TO_SETTLE = 4

SECONDS_OF_STEPS = 1.5
"""So long the time of a healthy step is measured before each trial."""

DELAY_STEPS, MIN_DELAY, MAX_DELAY = 1.5, 0.06, 1.5
"""What is planted in a step, in healthy steps; seconds at least and at most."""

RIGHT_ACTIVITIES = {
    Cause.BACKWARD_SLEEP: {Activity.OTHER},
    Cause.BACKWARD_BUSY: {Activity.OTHER},
    Cause.LOADER: {Activity.DATA},
    Cause.STORAGE: {Activity.DATA},
    Cause.SAVE: {Activity.SAVE},
    Cause.BATCH: {Activity.COMPUTE},
}
"""What a slow rank does. The hook of a slow backward is in the script, not in torch."""

HEALTHY = {Cause.HEALTHY, Cause.HEALTHY_FREE}

RESAMPLES, LOWEST, HIGHEST = 2000, 0.05, 0.95


class Outcome(Enum):
    """What an answer is worth."""

    RIGHT = "right"
    PART = "only some of the ranks"
    """None of them wrong, and the right kind."""
    OTHER_KIND = "other kind"
    """The right rank."""
    LACKS_CPU = "lacks a CPU"
    """Said of ranks that are not slow, whose code is not accused: on full CPUs it may be true."""
    NONE = "none named"
    """Or not clear, or the CPUs are overcommitted."""
    WRONG = "wrong"
    """A wrong rank, or code that is not slow."""


class Trial(msgspec.Struct, frozen=True):
    """A line of the file."""

    kind: Kind
    cause: Cause
    number: int
    ranks: tuple[int, ...]
    """Those that were made slow."""
    digest: str
    load: float
    """The machine's load average after the trial."""
    step: float
    """Seconds of a healthy step before it."""
    cpus: float
    """What the median rank uses in healthy steps, without its DataLoader process."""
    delay: float
    """Seconds planted."""
    report: msgspec.Raw
    """What ``clusterrun slow --json`` has printed."""

    @property
    def outcome(self) -> Outcome:
        verdict = msgspec.json.decode(self.report, type=SlowReport).verdicts[0]
        return outcome_of(self.cause, set(self.ranks), verdict)


def main() -> None:
    """Make trials or measure the cost, until all is done or time is over; or show what is there."""
    options = parse_options()
    if options.table:
        print_table(trials_in(options.out), options)
        return
    exit_on_sigterm()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
    until = time.monotonic() + 60 * options.minutes
    if options.cost:
        for kind in options.kinds:
            print_cost(kind, options.cost, options.python, until)
        return
    code, wanted = digest(), possible(options.causes)
    for kind in options.kinds:
        make_trials(kind, wanted, code, options, until)


def parse_options() -> Namespace:
    """Return the command line's options."""
    parser = ArgumentParser(description="Judge clusterrun slow, and measure its cost.")
    parser.add_argument("--out", type=Path, help="the file of the trials")
    parser.add_argument("--trials", type=int, default=20, help="of each cause and kind of job")
    parser.add_argument("--kinds", type=kinds, default=list(Kind), help=",".join(Kind))
    parser.add_argument("--causes", type=causes, default=list(Cause), help=",".join(Cause))
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time")
    parser.add_argument(
        "--python", default=sys.executable, help="of the ranks; for hf with transformers"
    )
    parser.add_argument("--cost", type=int, metavar="PAIRS", help="measure the cost instead")
    parser.add_argument("--table", action="store_true", help="print the results, and exit")
    options = parser.parse_args()
    if not options.out and not options.cost:
        parser.error("give --out or --cost")
    return options


def kinds(text: str) -> list[Kind]:
    return [Kind(name) for name in text.split(",")]


def causes(text: str) -> list[Cause]:
    return [Cause(name) for name in text.split(",")]


# Trials.


def make_trials(
    kind: Kind, wanted: Sequence[Cause], code: str, options: Namespace, until: float
) -> None:
    """Make those trials of one kind of job that the file does not have.

    Args:
        kind: of the job.
        wanted: causes.
        code: the digest of the code; this exits if it changes.
        options: the command line's.
        until: no trial begins after this time of ``time.monotonic``.

    """
    there = {(it.kind, it.cause, it.number) for it in trials_in(options.out)}
    left = [
        (cause, number)
        for number in range(options.trials)
        for cause in shuffled(wanted, f"{kind} {number}")
        if (kind, cause, number) not in there
    ]
    for is_light in (False, True):
        own = [it for it in left if (it[0] is Cause.HEALTHY_FREE) is is_light]
        if not own or time.monotonic() > until:
            continue
        with training(kind, options.python, is_light=is_light) as job:
            for cause, number in own:
                if time.monotonic() > until:
                    break
                if digest() != code:
                    sys.exit("the code that is measured has changed")
                trial = made_trial(job, cause, number, code)
                with options.out.open("ab") as file:
                    file.write(msgspec.json.encode(trial) + b"\n")
                ranks = ",".join(map(str, trial.ranks)) or "-"
                print(f"{kind} {cause} {number}, ranks {ranks}: {trial.outcome.value}", flush=True)


def possible(wanted: Sequence[Cause]) -> list[Cause]:
    """Return the causes that can be planted on this machine; print why others can't."""
    found = []
    for cause in wanted:
        if why := why_impossible(cause, Path(tempfile.gettempdir())):
            print(f"no trials of {cause}: {why}", file=sys.stderr)
        else:
            found.append(cause)
    return found


def shuffled(items: Sequence[Cause], seed: str) -> list[Cause]:
    return random.Random(seed).sample(items, len(items))


def ranks_to_slow(kind: Kind, cause: Cause, number: int) -> tuple[int, ...]:
    """Return the ranks that one trial makes slow: the same in each call."""
    if cause in HEALTHY:
        return ()
    if cause is Cause.COMPETITOR:
        return tuple(range(0, NPROC, 2))
    count = 2 if cause is Cause.STORAGE else 1
    return tuple(sorted(random.Random(f"{kind} {cause} {number}").sample(range(NPROC), count)))


def made_trial(job: "TrainingJob", cause: Cause, number: int, code: str) -> Trial:
    """Plant a cause, ask, and remove the cause."""
    job.settle()
    step, cpus = job.pace(SECONDS_OF_STEPS)
    delay = min(MAX_DELAY, max(MIN_DELAY, DELAY_STEPS * step))
    plan = Plan(cause, ranks_to_slow(job.kind, cause, number), delay)
    with planted(plan, job.pids, cpus, job.folder):
        job.settle()
        answer = job.ask()
    load, *_ = os.getloadavg()
    raw = msgspec.Raw(msgspec.json.encode(msgspec.json.decode(answer)))
    return Trial(job.kind, cause, number, plan.ranks, code, load, step, cpus, delay, raw)


def digest() -> str:
    """Return a digest of the code that is measured."""
    folder = Path(clusterrun.__file__).parent
    texts = [ast.unparse(ast.parse((folder / name).read_text())) for name in MEASURED]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def trials_in(file: Path) -> list[Trial]:
    """Return the trials of the code that is measured; print how many others there are."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    trials = [msgspec.json.decode(line, type=Trial) for line in lines]
    current = digest()
    own = [trial for trial in trials if trial.digest == current]
    if len(own) < len(trials):
        print(f"{len(trials) - len(own)} trials of other code don't count", file=sys.stderr)
    return own


# The job.


class TrainingJob:
    """A job that trains."""

    def __init__(self, kind: Kind, folder: Path, run_id: str, launched: Job) -> None:
        self.kind = kind
        self.folder = folder
        self._run_id = run_id
        self._launched = launched
        self.pids = {int(path.stem): int(path.read_text()) for path in folder.glob("*.pid")}
        self._steps = StepCounter(0, folder)

    @property
    def nproc(self) -> int:
        return len(self.pids)

    @property
    def agent(self) -> psutil.Process:
        return psutil.Process(self._launched.process.pid)

    def steps(self) -> int:
        """Return how many steps rank 0 has begun."""
        return self._steps.count()

    def settle(self) -> None:
        """Wait until a change of the plan shows in all that ranks do."""
        until = self.steps() + STEPS_TO_SETTLE
        time.sleep(SECONDS_TO_SETTLE)
        self.await_steps(until)

    def await_steps(self, steps: int) -> None:
        """Wait until rank 0 has begun so many; exit if the job ends or hangs."""
        until = time.monotonic() + SECONDS_TO_START
        while self.steps() < steps:
            if self._launched.exit_code(within=0.05) is not None or time.monotonic() > until:
                self.fail(f"rank 0 has begun {self.steps()} steps")

    def pace(self, seconds: float) -> tuple[float, float]:
        """Return the seconds of a step of rank 0, and the CPUs that the median rank uses."""
        steps, used, start = self.steps(), self._cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        taken = time.monotonic() - start
        cpus = [
            (later - earlier) / taken
            for earlier, later in zip(used, self._cpu_seconds(), strict=True)
        ]
        return taken / max(1, self.steps() - steps), statistics.median(cpus)

    def _cpu_seconds(self) -> list[float]:
        times = [psutil.Process(pid).cpu_times() for pid in self.pids.values()]
        return [it.user + it.system for it in times]

    def ask(self) -> bytes:
        """Return what ``clusterrun slow --json`` prints."""
        try:
            done = subprocess.run(
                slow_command(self._run_id),
                capture_output=True,
                timeout=SECONDS_TO_ANSWER,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.fail(f"clusterrun slow has not ended in {SECONDS_TO_ANSWER:g} s")
        if done.returncode != 0:
            errors = done.stderr.decode(errors="replace").strip()
            self.fail(f"clusterrun slow: exit code {done.returncode}: {errors}")
        return done.stdout

    def fail(self, what: str) -> NoReturn:
        """Show the end of the job's output, and exit."""
        self._launched.complain(what)
        sys.exit(1)


def slow_command(run_id: str) -> list[str]:
    """Return the command that is measured."""
    beside = Path(sys.executable).with_name(OURS)
    return [str(beside), "slow", run_id, f"--seconds={SECONDS_SAMPLED}", "--json"]


@contextmanager
def training(kind: Kind, python: str, *, is_light: bool = False) -> Iterator[TrainingJob]:
    """Start a job, and wait until it trains; at the end kill it."""
    nproc = LIGHT_NPROC if is_light else NPROC
    run_id = f"bench-slow-{os.getpid()}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Plan(Cause.HEALTHY).write(folder)
        StepCounter(0, folder)
        if why_impossible(Cause.STORAGE, folder) is None:
            for rank in range(nproc):
                data_file(rank, folder).write_bytes(os.urandom(DATA_BYTES))
        options = [f"--run-id={run_id}", f"--python={python}"]
        words = command(OURS, nproc, *options, PROGRAM, kind, folder, *["--light"] * is_light)
        with started(words) as launched:
            at_work = written_by_all(folder, "*.pid", nproc, SECONDS_TO_START, launched)
            job = TrainingJob(kind, folder, run_id, launched)
            if len(at_work) < nproc:
                job.fail(f"{len(at_work)} of {nproc} ranks have started")
            job.await_steps(STEPS_TO_WARM_UP)
            yield job


# What an answer is worth.


def outcome_of(cause: Cause, slow: set[int], verdict: SlowVerdict) -> Outcome:
    """Return what a verdict is worth, if these ranks are slow."""
    ranks, accuses_code = verdict.ranks, True
    match verdict.kind:
        case VerdictKind.SLOW:
            is_kind = verdict.activity in RIGHT_ACTIVITIES.get(cause, set())
        case VerdictKind.THROTTLED | VerdictKind.NO_CPU as kind:
            accuses_code = False
            is_kind = cause is Cause.COMPETITOR or (
                cause is Cause.QUOTA and kind is VerdictKind.THROTTLED
            )
        case VerdictKind.DIFFERS | VerdictKind.STOPPED:
            is_kind = False
        case _:
            return Outcome.NONE
    if cause in HEALTHY and not accuses_code:
        return Outcome.LACKS_CPU
    if not slow.issuperset(ranks) or (cause is Cause.COMPETITOR and accuses_code):
        return Outcome.WRONG
    if not is_kind:
        return Outcome.OTHER_KIND
    return Outcome.RIGHT if len(ranks) == len(slow) else Outcome.PART


def right_outcomes(cause: Cause) -> set[Outcome]:
    """Return what counts as right: of ranks that share a disk or a CPU, some are enough."""
    if cause in HEALTHY:
        return {Outcome.NONE}
    if cause is Cause.COMPETITOR:
        return {Outcome.RIGHT, Outcome.PART, Outcome.NONE}
    return {Outcome.RIGHT, Outcome.PART}


def print_table(trials: Sequence[Trial], options: Namespace) -> None:
    """Print a Markdown table: right answers and trials by cause and kind of job, and what others say."""
    outcomes = {
        (cause, kind): Counter(it.outcome for it in trials if (it.cause, it.kind) == (cause, kind))
        for cause in options.causes
        for kind in options.kinds
    }
    print(f"| cause | {' | '.join(options.kinds)} |")
    print(f"| --- |{' --- |' * len(options.kinds)}")
    for cause in options.causes:
        print(
            f"| {cause} | {' | '.join(cell(cause, outcomes[cause, it]) for it in options.kinds)} |"
        )
    total = sum(counts.total() for counts in outcomes.values())
    right = sum(right_in(cause, counts) for (cause, _), counts in outcomes.items())
    wrong = sum(counts[Outcome.WRONG] for counts in outcomes.values())
    if total:
        print(f"\n{right} of {total} right: {right / total:.1%}; {wrong} wrong accusations")


def right_in(cause: Cause, counts: Counter[Outcome]) -> int:
    return sum(counts[outcome] for outcome in right_outcomes(cause))


def cell(cause: Cause, counts: Counter[Outcome]) -> str:
    """Return "18/20 (1 other kind, 1 wrong)"."""
    if not counts:
        return "-"
    plain = Outcome.NONE if cause in HEALTHY else Outcome.RIGHT
    rest = [f"{counts[it]} {it.value}" for it in Outcome if counts[it] and it is not plain]
    shown = f"{right_in(cause, counts)}/{counts.total()}"
    return f"{shown} ({', '.join(rest)})" if rest else shown


# The cost.


class Spent(NamedTuple):
    """One window."""

    steps_per_second: float
    sampler: float
    """CPU seconds per second of the agent's children that ended: the sampler and its py-spy."""
    seconds: float


def print_cost(kind: Kind, pairs: int, python: str, until: float) -> None:
    """Print a row of a Markdown table: what asking costs a job of one kind."""
    ratios: list[float] = []
    samplers: list[float] = []
    with training(kind, python) as job:
        # The windows without a query are as long as the one before with it.
        seconds = spent(job, None).seconds
        while len(ratios) < pairs and time.monotonic() < until:
            order = [None, seconds]
            random.shuffle(order)
            first, second = (spent(job, each) for each in order)
            asked, idle = (first, second) if order[0] is None else (second, first)
            seconds = asked.seconds
            if idle.steps_per_second:
                ratios.append(asked.steps_per_second / idle.steps_per_second)
                samplers.append(asked.sampler / job.nproc)
    if not ratios:
        sys.exit("no pair was measured")
    low, high = interval_of_median(ratios)
    cells = [
        f"{kind}, {len(ratios)} pairs",
        f"{statistics.median(ratios):.3f} times the steps per second (90 %: {low:.3f}-{high:.3f})",
        f"{statistics.median(samplers):.2%} of a core per rank",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def spent(job: TrainingJob, seconds: float | None) -> Spent:
    """Ask, or sleep for these seconds; return the job's speed meanwhile."""
    steps, start, before = job.steps(), time.monotonic(), job.agent.cpu_times()
    if seconds is None:
        job.ask()
    else:
        time.sleep(seconds)
    taken, after = time.monotonic() - start, job.agent.cpu_times()
    of_children = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return Spent((job.steps() - steps) / taken, of_children / taken, taken)


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of the median's 90 % interval, by resampling."""
    generator = random.Random(0)
    medians = sorted(
        statistics.median(generator.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return medians[round(RESAMPLES * LOWEST)], medians[round(RESAMPLES * HIGHEST) - 1]


if __name__ == "__main__":
    main()
