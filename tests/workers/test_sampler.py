"""Samples of real processes, with a stand-in for py-spy and with the real one."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from tests.waiting import wait_until
from tests.workers.door import (
    Activity,
    AskedChild,
    NodeSamples,
    Sampling,
    WhyNoStacks,
    sample_node,
)

ONE_SECOND = Sampling(1.0, windows=1)

SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(60)"
SPINS = "print('begun', flush=True)\nwhile True: pass"
HAS_CHILDREN = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print("begun", child.pid, flush=True)
time.sleep(60)
"""

PY_SPY = """#!/bin/sh
pid=$3
echo "py-spy> Sampling process 20 times a second for 1 seconds. Press Control-C to exit."
echo
echo "$@" > {folder}/asked-for-$pid
echo "thread ($pid): MainThread;<module> (/me/train.py:9);step (/me/train.py:88) 15"
echo "thread ($pid);<module> (/me/train.py:9);open (/venv/lib/python3.11/site-packages/PIL/Image.py:1) 5"
echo "thread (1): Thread-1 (run);run (/usr/lib/python3.11/threading.py:9) 20"
echo "py-spy> Wrote raw flamegraph data to '/dev/stdout'. Samples: 40 Errors: 0" >&2
"""

WITH_CHILDREN = """#!/bin/sh
pid=$3
echo "process $pid:\\"python; train.py\\";thread ($pid): MainThread;main (/me/train.py:9) 20"
child="process $pid:\\"python\\";process 7:\\"python\\";thread"
echo "$child (7): MainThread;Samples.__getitem__ (/me/data.py:7) 15"
echo "$child (8): Thread-1 (pin);pin (/me/data.py:99) 20"
"""


class Ranks:
    """Processes that are killed after the test."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> int:
        """Start a process, and return its id once it has printed a line."""
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self._running.append(process)
        assert process.stdout is not None
        self.line = process.stdout.readline()
        return process.pid

    def python(self, code: str) -> int:
        return self.start(sys.executable, "-c", code)

    def end(self) -> None:
        for process in self._running:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    made.end()


def stand_in(folder: Path, script: str = PY_SPY) -> Path:
    program = folder / "py-spy"
    program.write_text(script.replace("{folder}", str(folder)))
    program.chmod(0o755)
    return program


def test_stacks_and_what_the_kernel_counts(ranks: Ranks, tmp_path: Path) -> None:
    """Of main threads alone, in each window; py-spy stops no rank, and gets no native frames."""
    sleeps, spins = ranks.python(SLEEPS), ranks.python(SPINS)

    samples = sample_node({3: spins, 2: sleeps}, stand_in(tmp_path), Sampling(1.4))

    assert [(each.rank, each.pid, len(each.windows)) for each in samples.ranks] == [
        (2, sleeps, 2),
        (3, spins, 2),
    ]
    calm, busy = (each.windows[1] for each in samples.ranks)
    assert calm.samples == 20
    assert calm.activities == {Activity.OTHER: 0.75, Activity.DATA: 0.25}
    assert [it.place for it in calm.places] == ["train.py:88 step", "train.py:9 <module>"]
    assert calm.cpu < 0.1
    assert busy.cpu + busy.queue > 0.8
    assert busy.states["R"] > 0.5
    assert samples.ranks[0].why_no_stacks is None
    assert (tmp_path / f"asked-for-{spins}").read_text().split() == [
        *("record", "--pid", str(spins), "--duration", "1", "--rate", "20", "--idle"),
        *("--nonblocking", "--threads", "--full-filenames", "--format", "raw"),
        *("--output", "/dev/stdout"),
    ]


def test_the_cpus_of_the_node(ranks: Ranks) -> None:
    """Child processes of ranks are the job's, too."""
    pid = ranks.python(HAS_CHILDREN)

    samples = sample_node({0: pid}, None, ONE_SECOND)

    assert samples.cpus == len(os.sched_getaffinity(0))
    assert samples.busy > 0
    # Others may compute on this machine meanwhile, and leave it less than a CPU.
    assert samples.busy_by_job > 0.1 / samples.cpus
    [window] = samples.ranks[0].windows
    assert window.loaders["R"] > 0.5


def test_child_processes(ranks: Ranks, tmp_path: Path) -> None:
    """The main threads of DataLoader processes, by their own places."""
    pid = ranks.python(SLEEPS)

    samples = sample_node(
        {0: pid}, stand_in(tmp_path, WITH_CHILDREN), Sampling(1, windows=1, children=True)
    )

    [found] = samples.ranks
    assert [it.place for it in found.windows[0].places] == ["train.py:9 main"]
    assert [(it.activity, it.place, it.share) for it in found.loader_places] == [
        (Activity.DATA, "data.py:7 Samples.__getitem__", 1.0)
    ]


def test_no_rank_takes_no_time() -> None:
    began = time.monotonic()

    samples = sample_node({}, None, Sampling(60.0))

    assert samples.ranks == ()
    assert time.monotonic() - began < 10


def test_a_stopped_rank(ranks: Ranks, tmp_path: Path) -> None:
    pid = ranks.python(SPINS)
    os.kill(pid, signal.SIGSTOP)

    [found] = sample_node({0: pid}, stand_in(tmp_path), ONE_SECOND).ranks

    assert found.windows[0].states["T"] > 0.8


def test_a_rank_that_has_ended(ranks: Ranks, tmp_path: Path) -> None:
    """Before the windows, or in one: then it has not been seen for all of it."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    ends = ranks.python("import time\nprint(flush=True)\ntime.sleep(0.5)")

    before, during = sample_node({0: gone.pid, 1: ends}, stand_in(tmp_path), ONE_SECOND).ranks

    assert (before.why_no_stacks, before.windows) == (WhyNoStacks.ENDED, ())
    assert (during.why_no_stacks, len(during.windows)) == (WhyNoStacks.ENDED, 1)


NO_PYTHON = "Failed to find python version from target process"


@pytest.mark.parametrize(
    ("script", "why", "problem"),
    [
        ("echo 'Permission Denied: Try running again' >&2", "REFUSED", "Permission Denied: Try"),
        ("echo 'Error: Operation not permitted (os error 1)' >&2", "REFUSED", "Error: Operation"),
        (f"echo 'Error: {NO_PYTHON}' >&2; echo 'Stack backtrace:' >&2", "FAILED", "Error: Failed"),
        ("echo 'thread (1): MainThread;main (train.py:9) 20'", "FAILED", None),
        ("echo 'py-spy> Wrote raw data' >&2; echo wrong >&2", "FAILED", "wrong"),
    ],
)
def test_why_there_are_no_stacks(
    ranks: Ranks, tmp_path: Path, script: str, why: str, problem: str | None
) -> None:
    """The rank is sampled as far as /proc shows it."""
    pid = ranks.python(SLEEPS)

    [found] = sample_node({0: pid}, stand_in(tmp_path, f"#!/bin/sh\n{script}"), ONE_SECOND).ranks

    assert found.why_no_stacks is WhyNoStacks[why]
    assert found.problem is None if problem is None else (found.problem or "").startswith(problem)
    assert found.windows[0].samples == 0
    assert sum(found.windows[0].states.values()) == pytest.approx(1, abs=0.01)


def test_a_process_that_is_not_python(ranks: Ranks, tmp_path: Path) -> None:
    pid = ranks.start("sh", "-c", "echo begun; while :; do sleep 1; done")
    program = stand_in(tmp_path, f"#!/bin/sh\necho 'Error: {NO_PYTHON}' >&2")

    [found] = sample_node({0: pid}, program, ONE_SECOND).ranks

    assert found.why_no_stacks is WhyNoStacks.NOT_PYTHON


@pytest.mark.parametrize("program", [None, "/no/such/py-spy"])
def test_no_py_spy(ranks: Ranks, program: str | None) -> None:
    pid = ranks.python(SLEEPS)

    [found] = sample_node({0: pid}, Path(program) if program else None, ONE_SECOND).ranks

    assert found.why_no_stacks is (WhyNoStacks.FAILED if program else WhyNoStacks.MISSING)
    assert found.windows[0].cpu < 0.1


def test_a_py_spy_that_does_not_end(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{sample_node.__module__}.SECONDS_FOR_PY_SPY_TO_END", 0.2)
    program = stand_in(tmp_path, "#!/bin/sh\nexec sleep 60")
    pid = ranks.python(SLEEPS)

    [found] = sample_node({0: pid}, program, ONE_SECOND).ranks

    assert found.why_no_stacks is WhyNoStacks.FAILED
    assert found.problem == "py-spy has not ended 0.2 s after its time"


def test_its_processes_end_with_it(ranks: Ranks, tmp_path: Path) -> None:
    """The agent kills the group of a sampler that is late."""
    program = stand_in(tmp_path, "#!/bin/sh\necho $$ > {folder}/pid\nexec sleep 60")
    pid = ranks.python(SLEEPS)
    child = AskedChild(
        lambda: msgspec.msgpack.encode(sample_node({0: pid}, program, ONE_SECOND)), 30
    )
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "py-spy")

    child.end()

    spy = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(spy), "its end")


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


# A machine that the test invents: what this one may not have.


class Invented:
    """Files of /proc and /sys that change while a rank is sampled: its py-spy changes them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._later = root / "later"

    def write(self, files: Mapping[str, str], *, later: bool = False) -> None:
        for path, text in files.items():
            file = (self._later if later else self.root) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def py_spy(self) -> Path:
        return stand_in(self.root, f"#!/bin/sh\ncp -r {self._later}/. {self.root}")


STAT = "7 (odd ) name) S " + " ".join(["0"] * 10) + " {user} {system} 0"
GROUP = "sys/fs/cgroup/job"
CPU_STAT_2 = "usage_usec 9\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {used}"
CPU_STAT_1 = "nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time {used}000"


def machine(*, user: int, busy: int, waited: int, **quota: int) -> dict[str, str]:
    used = 50 * busy
    return {
        "proc/stat": f"cpu 9 9\ncpu0 {used} 0 0 {5000 - used} 0 0 0 0 0 0\ncpu1 0 0 0 {busy} 0 0 0 0",
        "proc/7/stat": STAT.format(user=user, system=0),
        "proc/7/status": "Cpus_allowed_list:\t0",
        "proc/7/task/7/schedstat": f"{user * 10_000_000} {user * 5_000_000} 1",
        "proc/7/task/7/children": "",
        "proc/7/wchan": "futex_wait_queue.isra.0",
        "proc/7/cgroup": "0::/job",
        "proc/self/cgroup": "0::/other",
        "proc/self/mountinfo": "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 none rw",
        "proc/pressure/io": f"some avg10=0.00 total={waited}\nfull avg10=0.00 total=0",
        "proc/sys/kernel/yama/ptrace_scope": "1",
        f"{GROUP}/cpu.stat": CPU_STAT_2.format(**quota),
    }


def test_quota_pressure_and_others_on_an_invented_machine(tmp_path: Path) -> None:
    """The rank's own cgroup, not ours; only the CPUs that it may use; the time between the edges."""
    invented = Invented(tmp_path)
    invented.write(machine(user=0, busy=1, waited=0, periods=0, throttled=0, used=0))
    invented.write(
        machine(user=40, busy=51, waited=500_000, periods=10, throttled=4, used=9_000_000),
        later=True,
    )

    samples = sample_node({0: 7}, invented.py_spy(), ONE_SECOND, root=tmp_path)

    [window] = samples.ranks[0].windows
    assert window.throttled == 0.4
    assert window.cpu == pytest.approx(0.4, abs=0.1)
    assert window.queue == pytest.approx(0.2, abs=0.05)
    assert window.states == {"futex_wait_queue": 1.0}
    assert samples.cpus == 1
    assert samples.busy == 1.0
    assert samples.busy_by_job == pytest.approx(0.4, abs=0.1)
    assert samples.pressure["io"] == pytest.approx(0.5, abs=0.1)
    assert samples.ptrace_scope == 1


def test_a_quota_of_version_1(tmp_path: Path) -> None:
    """The time that it counts is less than that of all periods in which it was used up."""
    invented = Invented(tmp_path)
    first = machine(user=0, busy=1, waited=0, periods=0, throttled=0, used=0)
    of_version_1 = {
        "proc/7/cgroup": "4:cpu,cpuacct:/job",
        "proc/self/mountinfo": "1 1 0:1 / /sys/fs/cgroup rw - cgroup none rw,cpu,cpuacct",
        f"{GROUP}/cpu.stat": CPU_STAT_1.format(periods=0, throttled=0, used=0),
    }
    invented.write({**first, **of_version_1})
    later = {f"{GROUP}/cpu.stat": CPU_STAT_1.format(periods=10, throttled=9, used=300_000)}
    invented.write(later, later=True)

    [found] = sample_node({0: 7}, invented.py_spy(), ONE_SECOND, root=tmp_path).ranks

    assert found.windows[0].throttled == pytest.approx(0.3, abs=0.05)


# The real one.

MEET = """
import os, sys, time

def sleeps_too_long():
    time.sleep(0.15)

def meets():
    os.write(to_next, b"x")
    os.read(from_last, 1)

to_next, from_last, is_slow = map(int, sys.argv[1:])
print("begun", flush=True)
while True:
    if is_slow:
        sleeps_too_long()
    meets()
"""


@pytest.mark.needs("py-spy")
def test_the_real_py_spy_names_the_function(tmp_path: Path) -> None:
    """Three processes wait for each other in a ring; one of them sleeps in each step."""
    script = tmp_path / "ring.py"
    script.write_text(MEET)
    pipes = [os.pipe() for _ in range(3)]
    ring = []
    for at in range(3):
        ends = (pipes[at][1], pipes[at - 1][0])
        words = [sys.executable, str(script), *map(str, ends), str(int(at == 1))]
        ring.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, pass_fds=ends))
    try:
        for process in ring:
            assert process.stdout is not None
            process.stdout.readline()
        program = shutil.which("py-spy")
        assert program is not None
        pids = {rank: process.pid for rank, process in enumerate(ring)}
        sampled = AskedChild(
            lambda: msgspec.msgpack.encode(sample_node(pids, Path(program), Sampling(2.0))), 60
        ).wait()
    finally:
        for process in ring:
            process.kill()
            process.communicate()
        for end in (each for pipe in pipes for each in pipe):
            os.close(end)
    samples = msgspec.msgpack.decode(sampled, type=NodeSamples)
    if {each.why_no_stacks for each in samples.ranks} == {WhyNoStacks.REFUSED}:
        pytest.skip("py-spy may not read processes here")

    most = [max(each.windows[1].places, key=lambda it: it.share) for each in samples.ranks]

    assert [it.place.split()[-1] for it in most] == ["meets", "sleeps_too_long", "meets"]
    assert all(it.share > 0.6 for it in most)
    assert min(window.samples for each in samples.ranks for window in each.windows) > 20
