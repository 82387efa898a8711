"""Samples of real processes, with a fake py-spy and with the real one."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest
from clusterrun.policy.queries import SECONDS, Topic
from clusterrun.policy.samples import Activity, NodeSamples, WhyNoStacks
from clusterrun.processes import TimeLimitedChild
from clusterrun.run.node_answers import SECONDS_TO_FORWARD
from clusterrun.workers.sampler import sample_node

from tests.waiting import wait_until

SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(60)"
SPINS = "print('begun', flush=True)\nwhile True: pass"
ENDS = "import time\nprint('begun', flush=True)\ntime.sleep(0.5)"
FORKS = f"import os\nos.fork()\n{SPINS}"

PY_SPY = """
pid=$3
echo "py-spy> Sampling process 20 times a second for 1 seconds. Press Control-C to exit."
echo
echo "$@" > {folder}/asked-for-$pid
echo "thread ($pid): MainThread;<module> (/me/train.py:9);step (/me/train.py:88) 15"
echo "thread ($pid);<module> (/me/train.py:9);open (/venv/lib/python3.11/site-packages/PIL/Image.py:1) 5"
echo "thread (1): Thread-1 (run);run (/usr/lib/python3.11/threading.py:9) 20"
echo "py-spy> Wrote raw flamegraph data to '/dev/stdout'. Samples: 40 Errors: 0" >&2
"""
WITH_CHILDREN = """
pid=$3
echo "$@" > {folder}/asked-for-$pid
echo "process $pid:\\"python; train.py\\";thread ($pid): MainThread;main (/me/train.py:9) 20"
child="process $pid:\\"python\\";process 7:\\"python\\";thread"
echo "$child (7): MainThread;Samples.__getitem__ (/me/data.py:7) 15"
echo "$child (8): Thread-1 (pin);pin (/me/data.py:99) 20"
"""

Start = Callable[..., int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a script in a process that is killed after the test; get its id once it has printed a line."""
    running: list[subprocess.Popen[str]] = []

    def start(
        code: str, *arguments: str, program: str = sys.executable, keep: Sequence[int] = ()
    ) -> int:
        script = tmp_path / f"script{len(running)}"
        script.write_text(code)
        words = [program, str(script), *arguments]
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, start_new_session=True, pass_fds=keep
        )
        running.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield start
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def fake_py_spy(folder: Path, script: str = PY_SPY) -> Path:
    program = folder / "py-spy"
    program.write_text("#!/bin/sh\n" + script.replace("{folder}", str(folder)))
    program.chmod(0o755)
    return program


def test_stacks_and_kernel_counters(start: Start, tmp_path: Path) -> None:
    """Of main threads only, in each window; py-spy stops no rank, and gets no native frames."""
    sleeps, spins = start(SLEEPS), start(SPINS)

    samples = sample_node({3: spins, 2: sleeps}, fake_py_spy(tmp_path), 1.4)

    found = [(each.rank, each.pid, len(each.windows)) for each in samples.ranks]
    assert found == [(2, sleeps, 2), (3, spins, 2)]
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


def test_stacks_of_child_processes(start: Start, tmp_path: Path) -> None:
    """The main threads of DataLoader processes; their CPU time is the job's."""
    pid = start(FORKS)

    samples = sample_node({0: pid}, fake_py_spy(tmp_path, WITH_CHILDREN), 1, 1, children=True)

    [found] = samples.ranks
    [window] = found.windows
    assert [it.place for it in window.places] == ["train.py:9 main"]
    assert [(it.activity, it.place, it.share) for it in found.loader_places] == [
        (Activity.DATA, "data.py:7 Samples.__getitem__", 1.0)
    ]
    assert window.loaders["R"] > 0.5
    assert (tmp_path / f"asked-for-{pid}").read_text().split()[-1] == "--subprocesses"
    assert samples.cpus == len(os.sched_getaffinity(0))
    assert samples.busy > 0
    # Others may compute on this machine meanwhile, and leave it less than a CPU.
    assert samples.busy_by_job > 0.1 / samples.cpus


def test_no_rank_returns_at_once() -> None:
    began = time.monotonic()

    assert sample_node({}, None, 60.0).ranks == ()
    assert time.monotonic() - began < 10


def test_stopped_and_ended_ranks(start: Start, tmp_path: Path) -> None:
    """A rank that ends in a window was not sampled for all of it."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    pids = {0: start(SPINS), 1: gone.pid, 2: start(ENDS)}
    os.kill(pids[0], signal.SIGSTOP)

    stopped, before, during = sample_node(pids, fake_py_spy(tmp_path), 1.0, 1).ranks

    assert stopped.windows[0].states["T"] > 0.8
    assert (before.why_no_stacks, before.windows) == (WhyNoStacks.ENDED, ())
    assert (during.why_no_stacks, len(during.windows)) == (WhyNoStacks.ENDED, 1)


NO_PYTHON = "echo 'Error: Failed to find python version from target process' >&2"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'Permission Denied: Try it' >&2", "REFUSED: Permission Denied: Try it"),
        ("echo 'Error: Operation not permitted' >&2", "REFUSED: Error: Operation not permitted"),
        (f"{NO_PYTHON}; echo 'Stack backtrace:' >&2", "FAILED: Error: Failed to find python"),
        (NO_PYTHON, "NOT_PYTHON: Error: Failed to find python"),
        ("echo 'thread (1): MainThread;main (train.py:9) 20'", "FAILED: None"),
        ("echo 'py-spy> Wrote raw data' >&2; echo wrong >&2", "FAILED: wrong"),
        ("exec sleep 60", "FAILED: py-spy was still running 3 s after it should have exited"),
    ],
)
def test_reason_for_missing_stacks(
    start: Start, tmp_path: Path, script: str, expected: str
) -> None:
    """/proc is sampled all the same."""
    is_python = not expected.startswith("NOT_PYTHON")
    pid = start(SLEEPS) if is_python else start("echo begun; sleep 60", program="sh")

    [found] = sample_node({0: pid}, fake_py_spy(tmp_path, script), 1.0, 1).ranks

    assert found.why_no_stacks is not None
    assert f"{found.why_no_stacks.name}: {found.problem}".startswith(expected)
    assert found.windows[0].samples == 0
    assert sum(found.windows[0].states.values()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("program", "why"), [(None, "MISSING"), (Path("/no/such/py-spy"), "FAILED")]
)
def test_missing_or_broken_py_spy(start: Start, program: Path | None, why: str) -> None:
    [found] = sample_node({0: start(SLEEPS)}, program, 1.0, 1).ranks

    assert found.why_no_stacks is WhyNoStacks[why]
    assert found.windows[0].cpu < 0.1


@pytest.mark.parametrize("is_late", [True, False])
def test_py_spy_is_killed_with_the_sampler(start: Start, tmp_path: Path, *, is_late: bool) -> None:
    """The agent kills the process group of a late sampler; if the agent is killed, the kernel kills it."""
    program = fake_py_spy(tmp_path, "echo $$ > {folder}/pid\nexec sleep 600")
    pid = start(SLEEPS)
    child = TimeLimitedChild(
        lambda: msgspec.msgpack.encode(sample_node({0: pid}, program, 1.0, 1)), 30
    )
    file = tmp_path / "pid"
    wait_until(lambda: file.exists() and file.read_text(), "py-spy")
    sampler = psutil.Process(int(file.read_text())).parent()
    assert sampler is not None

    if is_late:
        child.end()
    else:
        sampler.kill()

    wait_until(lambda: not is_alive(file.read_text().strip()), "its end")
    child.end()


def is_alive(pid: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


# An invented machine, which has what the test's machine may lack. Its fake py-spy changes the files.

MACHINE = {
    "proc/stat": "cpu 9 9\ncpu0 {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu1 0 0 0 {busy} 0 0 0 0",
    "proc/7/stat": f"7 (odd ) name) S {'0 ' * 10}{{ran}} 0 0",
    "proc/7/status": "Cpus_allowed_list:\t0",
    "proc/7/task/7/schedstat": "{ran}0000000 {queued}0000000 1",
    "proc/7/task/7/children": "",
    "proc/7/wchan": "futex_wait_queue.isra.0",
    "proc/self/cgroup": "0::/other",
    "proc/pressure/io": "some avg10=0.00 total={waited}0000\nfull avg10=0.00 total=0",
    "proc/sys/kernel/yama/ptrace_scope": "1",
}
BEFORE = {"busy": 50, "idle": 5000, "ran": 0, "queued": 0, "waited": 0, "all": 0, "full": 0}
AFTER = {"busy": 100, "idle": 5050, "ran": 40, "queued": 20, "waited": 50, "all": 10, "full": 4}


@pytest.mark.parametrize(
    ("group", "mount", "held", "throttled"),
    [
        # More than the periods in which the quota was used up, 0.4 of all; and less.
        ("0::/job", "cgroup2 none rw", "throttled_usec 9000000", 9.0),
        ("4:cpu,cpuacct:/job", "cgroup none rw,cpu,cpuacct", "throttled_time 300000000", 0.3),
    ],
    ids=["version 2", "version 1"],
)
def test_counters_of_an_invented_machine(
    tmp_path: Path, group: str, mount: str, held: str, throttled: float
) -> None:
    """The rank's cgroup, not ours; only the CPUs that it may use."""
    files = {
        **MACHINE,
        "proc/7/cgroup": group,
        "proc/self/mountinfo": f"1 1 0:1 / /sys/fs/cgroup rw - {mount}",
        "sys/fs/cgroup/job/cpu.stat": "nr_periods {all}\nnr_throttled {full}\n{held}",
    }
    for root, numbers in (
        (tmp_path, {**BEFORE, "held": f"{held.partition(' ')[0]} 0"}),
        (tmp_path / "later", {**AFTER, "held": held}),
    ):
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text.format(**numbers))
    # Each file is replaced as a whole: a half-written one could be read meanwhile.
    program = fake_py_spy(tmp_path, "cd {folder}/later && find . -type f -exec mv {} ../{} ';'")

    samples = sample_node({0: 7}, program, 1.0, 1, root=tmp_path)

    [window] = samples.ranks[0].windows
    # On a busy machine the window is longer than a second, and shares of its time are smaller.
    seconds = 0.4 / window.cpu
    assert 0.9 < seconds < 10.0
    assert window.queue == pytest.approx(0.2 / seconds, rel=0.1)
    assert window.throttled == pytest.approx(min(0.4, throttled / seconds), rel=0.1)
    assert window.states == {"futex_wait_queue": 1.0}
    assert (samples.cpus, samples.busy, samples.busy_by_job) == (1, 0.5, 0.4)
    assert samples.pressure == {"io": pytest.approx(0.5 / seconds, rel=0.1)}
    assert samples.ptrace_scope == 1


# The real one.

RING = """
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
def test_real_py_spy_names_the_function(start: Start) -> None:
    """Three processes wait for each other in a ring; one of them sleeps in each step."""
    pipes = [os.pipe() for _ in range(3)]
    pids = {}
    for at in range(3):
        ends = (pipes[at][1], pipes[at - 1][0])
        pids[at] = start(RING, *map(str, ends), str(int(at == 1)), keep=ends)
    for end in (each for pipe in pipes for each in pipe):
        os.close(end)
    program = Path(shutil.which("py-spy") or "missing")

    sampled = TimeLimitedChild(
        lambda: msgspec.msgpack.encode(sample_node(pids, program, 2.0)), 60
    ).wait()

    samples = msgspec.msgpack.decode(sampled, type=NodeSamples)
    if {each.why_no_stacks for each in samples.ranks} == {WhyNoStacks.REFUSED}:
        pytest.skip("py-spy may not read processes on this node")
    most = [max(each.windows[1].places, key=lambda it: it.share) for each in samples.ranks]
    assert [it.place.split()[-1] for it in most] == ["meets", "sleeps_too_long", "meets"]
    assert all(it.share > 0.6 for it in most)
    assert min(window.samples for each in samples.ranks for window in each.windows) > 20


@pytest.mark.long
def test_late_py_spy_in_each_window_leaves_time_for_the_answer(
    start: Start, tmp_path: Path
) -> None:
    """The agent kills a sampler that takes longer than its query."""
    pid, program = start(SLEEPS), fake_py_spy(tmp_path, "exec sleep 600")

    sampled = TimeLimitedChild(
        lambda: msgspec.msgpack.encode(sample_node({0: pid}, program, 1.0)),
        SECONDS[Topic.SAMPLES] + 2.0 - SECONDS_TO_FORWARD,
    ).wait()

    [rank] = msgspec.msgpack.decode(sampled, type=NodeSamples).ranks
    assert (len(rank.windows), rank.why_no_stacks) == (2, WhyNoStacks.FAILED)
