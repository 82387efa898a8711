"""The fork server as a process: workers start, end, and fail to start."""

import os
import resource
import signal
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.cpuset import CpuSet
from clusterrun.errors import UsageError
from clusterrun.planning.plan import MemoryPolicy
from clusterrun.policy import events, outcome
from clusterrun.workers.fork_server import kernel

from tests.waiting import wait_until
from tests.workers.fork_server_bench import PATIENCE, Bench, fork_server, preparation_for

FIRST, SECOND = LocalRank(0), LocalRank(1)

OPEN_DESCRIPTORS = """
import os
for name in sorted(os.listdir("/proc/self/fd"), key=int):
    try:
        os.fstat(int(name))
    except OSError:
        continue  # the folder's own
    print(name, end=" ")
"""


def test_workers_inherit_three_descriptors(bench: Bench) -> None:
    """Even if requests are so long that the descriptors of the next one arrive with the end of one.

    If a rank inherited another rank's pipe, that pipe would have no end of file.
    """
    long = {f"LONG_{number}": "x" * 100_000 for number in range(3)}

    workers = [
        bench.spawn(rank, sys.executable, "-c", OPEN_DESCRIPTORS, env=long) for rank in range(4)
    ]
    bench.events(8)

    assert [worker.rest() for worker in workers] == ["0 1 2 "] * 4


def test_deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with a relative path is not found; others run."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with fork_server() as bench:
        folder.rmdir()
        bench.spawn(0, "./train")
        bench.spawn(1, "true")

        happened = bench.events(3)

    error = "No such file or directory"
    ends = [event for event in happened if isinstance(event, events.WorkerEnded)]
    assert sorted(ends, key=lambda end: end.local_rank) == [
        events.WorkerEnded(FIRST, outcome.NotStarted("execute ./train", error), 7.0),
        events.WorkerEnded(SECOND, outcome.Exited(0), 7.0),
    ]


def test_many_workers(bench: Bench) -> None:
    """64 workers start and end, each reported under its own rank."""
    printed = [bench.spawn(rank, "sh", "-c", f"echo $$; exit {rank}") for rank in range(64)]

    happened = bench.events(128)

    starts = {
        event.local_rank: event.pid for event in happened if isinstance(event, events.WorkerStarted)
    }
    ends = {
        event.local_rank: event.exit_status
        for event in happened
        if isinstance(event, events.WorkerEnded)
    }
    assert starts == {rank: int(reader.line()) for rank, reader in enumerate(printed)}
    assert ends == {rank: outcome.Exited(rank) for rank in range(64)}


def test_exit_read_late_has_its_own_time(bench: Bench, tmp_path: Path) -> None:
    """So a later failure of a peer does not seem to be the first one."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    bench.spawn(0, "cat", str(gate))
    started = bench.expect(events.WorkerStarted)
    gate.write_text("")
    wait_until(lambda: kernel.state_and_parent(started.pid)[0] == "X", "the end of the worker")

    gone = time.monotonic()
    bench.now = gone + 100.0

    assert gone - PATIENCE < bench.expect(events.WorkerEnded).at <= gone


def test_too_many_open_files(bench: Bench) -> None:
    """A worker that can't be forked is reported, and the fork server continues."""
    bench.spawn(0, "true")
    bench.events(2)
    highest = max(int(file.name) for file in Path(f"/proc/{bench.server.pid}/fd").iterdir())
    limit = resource.prlimit(bench.server.pid, resource.RLIMIT_NOFILE)
    # Enough for its three streams, but not for another pipe.
    resource.prlimit(bench.server.pid, resource.RLIMIT_NOFILE, (highest + 4, limit[1]))

    bench.spawn(0, "true")
    failure = bench.event()
    resource.prlimit(bench.server.pid, resource.RLIMIT_NOFILE, limit)
    bench.spawn(1, "true")

    assert failure == events.WorkerEnded(
        FIRST, outcome.NotStarted("fork", "Too many open files"), 7.0
    )
    assert bench.events(2)[1] == events.WorkerEnded(SECOND, outcome.Exited(0), 7.0)


def test_missing_cpus(bench: Bench) -> None:
    """The worker runs on all CPUs, with a warning."""
    code = "import os; print(sorted(os.sched_getaffinity(0)))"

    printed = bench.spawn(0, sys.executable, "-c", code, cpus=CpuSet({4000}))

    warning = bench.expect(events.WorkerStarted).warning
    assert warning.startswith("not bound to CPUs 4000: ")
    assert "invalid CPU 4000" in warning
    assert printed.rest() == f"{sorted(os.sched_getaffinity(0))}\n"


TELLS_POLICY = """
    import mmap
    page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page[0] = 1
    print({line.split()[1] for line in open("/proc/self/numa_maps")})
"""


@pytest.mark.skipif("not os.path.exists('/proc/self/numa_maps')", reason="a kernel without NUMA")
@pytest.mark.parametrize(
    ("mode", "nodes", "shown"),
    [
        ("bind", (0,), "bind:0"),
        ("preferred", (0,), "prefer:0"),
    ],
)
def test_memory_policy_of_numa_node(
    bench: Bench, mode: str, nodes: tuple[int, ...], shown: str
) -> None:
    """/proc/PID/numa_maps shows the policy."""
    policy = MemoryPolicy(mode, nodes)

    printed = bench.spawn(0, sys.executable, "-c", dedent(TELLS_POLICY), memory=policy)

    assert bench.expect(events.WorkerStarted).warning == ""
    assert printed.rest() == f"{{{shown!r}}}\n"


@pytest.mark.skipif("not os.path.exists('/proc/self/numa_maps')", reason="a kernel without NUMA")
def test_memory_policy_of_missing_numa_node(bench: Bench) -> None:
    """The workers run without it, with one warning for all."""
    policy = MemoryPolicy("bind", (1000,))

    for local_rank in (0, 1):
        printed = bench.spawn(local_rank, sys.executable, "-c", dedent(TELLS_POLICY), memory=policy)
        assert printed.rest() == "{'default'}\n"

    warnings = [
        event.warning for event in bench.events(4) if isinstance(event, events.WorkerStarted)
    ]
    assert warnings == ["no memory policy, bind 1000: Invalid argument", ""]


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("echo libfoo.so is missing >&2; exit 9", "exited with code 9{}: libfoo.so is missing"),
        ("printf 'one\n\ntwo\n' >&2; exit 9", "exited with code 9{}:\n    one\n    two"),
        ("exec 3>&-; exec sleep 100", "closed its connection{}"),
    ],
)
def test_broken_interpreter(tmp_path: Path, code: str, how: str) -> None:
    """The error describes how it ended."""
    python = executable(tmp_path / "python", code)

    with fork_server(python) as bench, pytest.raises(UsageError) as caught:
        bench.event()

    before = " before it was ready to start workers"
    assert caught.value.message == f"{python} {how.format(before)}"


def test_killed_interpreter(tmp_path: Path) -> None:
    """This is not a usage error; the event has its output."""
    python = executable(tmp_path / "python", "echo out of memory >&2; kill -KILL $$")

    with fork_server(python) as bench:
        how = "was killed by SIGKILL before it was ready to start workers: out of memory"
        assert bench.event() == events.HelperLost("fork server", how, signal.SIGKILL, 7.0)


def test_server_killed_before_preparation(tmp_path: Path) -> None:
    """The pipes of requested workers are closed, so their readers don't wait."""
    python = executable(tmp_path / "python", "kill -KILL $$")

    with fork_server(python) as bench:
        bench.server.prepare(preparation_for("train.py"))
        printed = bench.spawn(0, "true")
        bench.expect(events.HelperLost)

        assert printed.rest() == ""


@pytest.mark.skipif("os.uname().machine != 'x86_64'", reason="system calls have other numbers")
def test_refused_prctl_is_reported(tmp_path: Path) -> None:
    """A sandbox may do that: it is reported once, and workers start."""
    refuses = tmp_path / "refuses.py"
    refuses.write_text(dedent(REFUSES_PRCTL))
    python = executable(tmp_path / "python", f'exec {sys.executable} {refuses} "$@"')

    with fork_server(python) as bench:
        bench.spawn(0, "true")

        ready = bench.expect(events.ForkServerReady)
        assert bench.events(2)[1] == events.WorkerEnded(FIRST, outcome.Exited(0), 7.0)

    assert ready.refused == tuple(
        f"the kernel refuses {name} (Operation not permitted)"
        for name in ("PR_SET_CHILD_SUBREAPER", "PR_SET_PDEATHSIG")
    )


def executable(path: Path, code: str) -> str:
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return str(path)


REFUSES_PRCTL = """
    import ctypes, os, struct, sys

    LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
    ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # linux/seccomp.h: SECCOMP_RET_ALLOW, ..._ERRNO | EPERM
    PRCTL, NUMBER, FIRST_ARGUMENT = 157, 0, 16
    steps = [
        (LOAD, 0, 0, NUMBER),
        (EQUAL, 0, 3, PRCTL),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (EQUAL, 2, 0, 1),  # PR_SET_PDEATHSIG
        (EQUAL, 1, 0, 36),  # PR_SET_CHILD_SUBREAPER
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    filters = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(filters))
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong]
    assert prctl(38, 1, None, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
