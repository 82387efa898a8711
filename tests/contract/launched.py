"""The command as a user starts it: its output, its exit code, the processes that it leaves.

Each process of a job is found by a variable in its environment, even without its parents.
"""

import itertools
import json
import os
import re
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from textwrap import dedent
from typing import IO, Any, NamedTuple

import psutil
from free_ports import free_port

from tests.waiting import SECONDS_TO_ACT, wait_until

COMMAND = str(Path(sys.executable).with_name("clusterrun"))

MARK = "MARK_OF_A_TESTED_JOB"

COMMON_VARIABLES: dict[str, str] = {}
"""Variables of each job that a test starts."""

SECONDS_TO_VANISH = 5.0
"""This long after a job's end, none of its processes may be left, on a very busy machine."""

WORKER_VARIABLE = re.compile(
    r"(CLUSTERRUN|PET|TORCHELASTIC|SLURM)_|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD)"
)


class Ended(NamedTuple):
    """A job that has ended: exit code (-N for signal N, as in ``subprocess``) and output."""

    code: int
    out: str
    err: str


class Job:
    """One started command; the ``clusterrun`` fixture ends it after the test."""

    def __init__(self, process: "subprocess.Popen[bytes]", mark: str) -> None:
        """Take a process with pipes; ``mark`` is in the environment of all its descendants."""
        self.process = process
        self.mark = mark
        self.is_over = False
        self._printed: dict[IO[bytes], bytearray] = {}
        self._selector = selectors.DefaultSelector()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._printed[stream] = bytearray()
            self._selector.register(stream, selectors.EVENT_READ)

    @property
    def out(self) -> str:
        """Standard output as read so far."""
        return next(iter(self._printed.values())).decode(errors="replace")

    @property
    def err(self) -> str:
        """Standard error as read so far."""
        return list(self._printed.values())[1].decode(errors="replace")

    @property
    def agent(self) -> int:
        """Process id of the launcher, if no other command wraps it."""
        return self.process.pid

    @property
    def fork_server(self) -> int:
        return fork_server_of(self.agent)

    @property
    def relay(self) -> int:
        return relay_of(self.agent)

    def wait_for(self, pattern: str, times: int = 1, seconds: float = SECONDS_TO_ACT) -> list[str]:
        """Wait until ``pattern`` was printed ``times`` times; return what ``re.findall`` finds."""
        what = f"{times} times {pattern!r}"
        self._read_until(lambda: len(self._found(pattern)) >= times, what, seconds)
        return self._found(pattern)

    def numbers(self, name: str, times: int = 1) -> list[int]:
        """Wait until workers have printed ``name 123`` ``times`` times; return these numbers."""
        pattern = re.compile(rf"\b{name} (\d+)\n")
        what = f"{times} times {name!r} and a number"
        self._read_until(lambda: len(pattern.findall(self.out)) >= times, what)
        return [int(number) for number in pattern.findall(self.out)]

    def signal(self, number: int) -> None:
        """Send a signal to the agent only."""
        self.process.send_signal(number)

    def ended(self, seconds: float = SECONDS_TO_ACT) -> Ended:
        """Wait for the end of the command and of its output."""
        deadline = time.monotonic() + seconds
        while self._selector.get_map():
            assert self._read(deadline), (
                f"still running, or its output open:\n{self._printed_so_far()}"
            )
        code = self.process.wait(max(0.1, deadline - time.monotonic()))
        self.is_over = True
        return Ended(code, self.out, self.err)

    def processes(self) -> list[psutil.Process]:
        return marked(self.mark)

    def left(self, seconds: float = SECONDS_TO_VANISH) -> list[str]:
        """Return what still runs after ``seconds``; empty as soon as no process is left."""
        return remaining_processes(self.mark, seconds)

    def kill_all(self) -> None:
        """Send SIGKILL to every process of the job, also to those that it starts meanwhile."""
        kill_marked(self.mark)
        self.process.wait(SECONDS_TO_ACT)
        self._selector.close()
        for stream in self._printed:
            stream.close()

    def _found(self, pattern: str) -> list[str]:
        return [found for text in (self.out, self.err) for found in re.findall(pattern, text)]

    def _read_until(
        self, is_found: Callable[[], bool], what: str, seconds: float = SECONDS_TO_ACT
    ) -> None:
        deadline = time.monotonic() + seconds
        while not is_found():
            assert self._selector.get_map(), f"ended without {what}:\n{self._printed_so_far()}"
            assert self._read(deadline), f"not in time: {what}:\n{self._printed_so_far()}"

    def _read(self, deadline: float) -> bool:
        """Read for at most until ``deadline``; return False if that has passed."""
        ready = self._selector.select(max(0.0, deadline - time.monotonic()))
        for key, _ in ready:
            chunk = os.read(key.fd, 1 << 20)
            for stream in [stream for stream in self._printed if stream.fileno() == key.fd]:
                self._printed[stream] += chunk
                if not chunk:
                    self._selector.unregister(stream)
        return bool(ready)

    def _printed_so_far(self) -> str:
        living = "\n".join(map(_describe, self.processes()))
        return f"--- stdout\n{self.out}--- stderr\n{self.err}--- processes\n{living}"


class Launcher:
    """Starts the command in a folder, and ends what it has started."""

    def __init__(self, folder: Path, program: str = COMMAND) -> None:
        """Take the folder for scripts, in which ``program``, the command, runs."""
        self.folder = folder
        self.program = program
        self.jobs: list[Job] = []
        self.mark = ""
        """The mark of all jobs; "": each has its own."""
        self._numbers = itertools.count()

    def script(
        self,
        text: str,
        *options: str,
        workers: int | None = None,
        args: Sequence[str] = (),
        around: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> Job:
        """Start ``clusterrun OPTIONS SCRIPT ARGS`` on a script with this text.

        Args:
            text: the script, indented as suits the test.
            options: for the launcher.
            workers: how many; None for as many as the options say.
            args: for the script.
            around: a command that executes the one that follows it: ``("nohup",)``.
            environ: variables on top of the tests' own.
            stdin: a descriptor, or one of ``subprocess``'s constants.

        """
        script = self.folder / f"script{next(self._numbers)}.py"
        script.write_text(dedent(text))
        words = (*options, str(script), *args)
        return self.command(*words, workers=workers, around=around, environ=environ, stdin=stdin)

    def command(
        self,
        *words: str,
        workers: int | None = None,
        around: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> Job:
        """Start ``clusterrun WORDS``."""
        count = () if workers is None else ("--nproc-per-node", str(workers))
        mark = self.mark or f"{os.getpid()}-{id(self)}-{next(self._numbers)}"
        process = subprocess.Popen(
            [*around, self.program, *count, *words],
            cwd=self.folder,
            env={**plain_environment(), **COMMON_VARIABLES, MARK: mark, **(environ or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.jobs.append(Job(process, mark))
        return self.jobs[-1]

    def close(self) -> None:
        """End all jobs; assert that those which had ended left no process."""
        left = [line for job in self.jobs if job.is_over for line in job.left()]
        for job in self.jobs:
            job.kill_all()
        assert not left, "\n".join(["left behind:", *left])


def plain_environment() -> dict[str, str]:
    """Return our environment without GPUs, variables of launchers and an active environment."""
    mine = {name: value for name, value in os.environ.items() if not WORKER_VARIABLE.match(name)}
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        mine.pop(name, None)
    return {**mine, "CUDA_VISIBLE_DEVICES": ""}


def node_options(nodes: int = 2) -> list[tuple[str, ...]]:
    """Return the options of each node of a job whose nodes are all on this machine."""
    address = ("--master-addr=127.0.0.1", f"--master-port={free_port()}")
    return [(f"--nnodes={nodes}", f"--node-rank={rank}", *address) for rank in range(nodes)]


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file, whose last line is complete."""
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


PROCESSES: dict[str, Callable[[int, int], int]] = {
    "agent": lambda agent, _worker: agent,
    "fork server": lambda agent, _worker: fork_server_of(agent),
    "relay": lambda agent, _worker: relay_of(agent),
    "worker": lambda _agent, worker: worker,
}
"""Functions that return the pid of each process of a job, by its agent and a worker."""


def fork_server_of(agent: int) -> int:
    return _child(agent, lambda child: "fork_server" in " ".join(child.cmdline()))


def relay_of(agent: int) -> int:
    # The kernel keeps 15 characters of "clusterrun-relay".
    return _child(agent, lambda child: child.name().startswith("clusterrun-rela"))


def _child(parent: int, is_it: Callable[[psutil.Process], bool]) -> int:
    def found() -> int:
        for child in psutil.Process(parent).children():
            with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
                if is_it(child):
                    return child.pid
        return 0

    # A worker may print before the relay has set its own name.
    return wait_until(found, f"a child of pid {parent}")


def marked(mark: str) -> list[psutil.Process]:
    """Return all living processes with this mark in their environment."""
    return [process for process in psutil.process_iter() if variable_of(process, MARK) == mark]


def remaining_processes(mark: str, seconds: float, besides: int = 0) -> list[str]:
    """Return what still runs after ``seconds``, without ``besides``; at once if nothing does."""
    deadline = time.monotonic() + seconds
    while living := [process for process in marked(mark) if process.pid != besides]:
        if not _await_any_end([it.pid for it in living], deadline - time.monotonic()):
            return [_describe(process) for process in living]
    return []


def kill_marked(mark: str) -> None:
    """Send SIGKILL to all processes with this mark, also to those that they start meanwhile."""
    deadline = time.monotonic() + SECONDS_TO_ACT
    while (living := marked(mark)) and time.monotonic() < deadline:
        for process in living:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _await_any_end([process.pid for process in living], SECONDS_TO_ACT)


def await_end(pid: int, seconds: float = SECONDS_TO_ACT) -> None:
    assert _await_any_end([pid], seconds), f"pid {pid} is still alive"


def await_status(pid: int, *statuses: str) -> None:
    """Wait until ``pid`` has one of these statuses, such as ``psutil.STATUS_STOPPED``."""
    # The kernel reports only to the parent that a process stops.
    wait_until(
        lambda: psutil.Process(pid).status() in statuses, f"pid {pid} is {' or '.join(statuses)}"
    )


def stop_process(pid: int) -> None:
    """Send SIGSTOP, and wait until the process has stopped."""
    os.kill(pid, signal.SIGSTOP)
    await_status(pid, psutil.STATUS_STOPPED)


def await_text(path: Path, text: str, times: int = 1) -> None:
    """Wait until a file contains ``text`` ``times`` times."""
    wait_until(
        lambda: path.exists() and path.read_text().count(text) >= times,
        f"{times} times {text!r} in {path}",
    )


def _await_any_end(pids: Iterable[int], seconds: float) -> bool:
    """Wait until one of these has ended; return False if none has. Their parents may reap them."""
    ends = select.poll()
    with ExitStack() as opened:
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                return True
            opened.callback(os.close, descriptor)
            ends.register(descriptor, select.POLLIN)
        return bool(ends.poll(max(0.0, seconds) * 1000))


def variable_of(process: psutil.Process, name: str) -> str:
    """Return a variable of a process; "" if the process lacks it or has ended."""
    with suppress(psutil.Error):
        return process.environ().get(name, "")
    return ""


def _describe(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"pid {process.pid}, child of {process.ppid()}: {' '.join(process.cmdline())}"
    return f"pid {process.pid}: has ended since"
