"""A job in Slurm's queue: its state, and following it until it ends (``submit --follow``)."""

import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType

from msgspec import Struct

from clusterrun.cli.printing import complain
from clusterrun.errors import ExitCode, MachineError, exit_code_of_signal, shell_line
from clusterrun.job.this_process import CommandResult
from clusterrun.signals import ENDING_SIGNALS

SlurmCommand = Callable[..., CommandResult]
"""Runs a command of Slurm: takes its words and, optionally, its standard input."""


class QueuedJob(Struct, frozen=True):
    """A job that Slurm has accepted."""

    number: str
    where: tuple[str, ...] = ()
    """The option that selects the job's cluster; () for the default cluster."""

    def line(self, command: str) -> str:
        """Return a Slurm command for this job, such as ``squeue -j 7``."""
        name, *options = command.split()
        return " ".join([name, *self.where, *options, self.number])


FINAL_STATES: Mapping[str, int] = {
    "BOOT_FAIL": ExitCode.NODE_LOST,
    "CANCELLED": exit_code_of_signal(15),
    "COMPLETED": 0,
    "DEADLINE": 124,
    "FAILED": 1,
    "NODE_FAIL": ExitCode.NODE_LOST,
    "OUT_OF_MEMORY": exit_code_of_signal(9),
    "PREEMPTED": exit_code_of_signal(15),
    "REVOKED": 1,
    "TIMEOUT": 124,
}
"""States of a job that has ended ("JOB STATE CODES" of squeue(1)), with the exit code to use if the job
has none of its own; 124 as in timeout(1)."""

RUNNING_STATES = {
    "RUNNING",
    "COMPLETING",
    "STAGE_OUT",
    "SIGNALING",
    "STOPPED",
    "SUSPENDED",
    "RESIZING",
}


class JobState(Struct, frozen=True):
    """The state of a job, and its output files."""

    words: str
    """In Slurm's words, such as ``PENDING (Resources)``."""
    exit_code: int | None = None
    """Set once the job has ended: its own exit code, or one for the reason of its end."""
    output: Path | None = None
    """The file with standard output, if it is known and the job has started."""
    error: Path | None = None
    """The file with standard error, unless it is the same."""


def parse_job_state(text: str) -> JobState:
    """Parse the output of ``scontrol --oneliner show job``."""
    # Paths may contain blanks, so a value ends before the next name.
    fields = dict(re.findall(r"(\w+)=(.*?)(?= +[\w:/]+=|\s*$)", text))
    state, reason = fields["JobState"], fields.get("Reason", "")
    if state not in FINAL_STATES and state not in RUNNING_STATES:
        return JobState(state if reason in {"", "None"} else f"{state} ({reason})")
    paths = (fields.get(name, "") for name in ("StdOut", "StdErr"))
    output, error = (None if it in {"", "/dev/null", "(null)"} else Path(it) for it in paths)
    error = None if error == output else error
    if state in RUNNING_STATES:
        return JobState(state, None, output, error)
    status, _, number = fields.get("ExitCode", "0:0").partition(":")
    own = int(status) or (exit_code_of_signal(int(number)) if int(number or 0) else 0)
    # For OUT_OF_MEMORY, Slurm reports signal 125, which is not used.
    is_own = own and state in {"FAILED", "CANCELLED", "PREEMPTED"}
    return JobState(state, own if is_own else FINAL_STATES[state], output, error)


POLL_INTERVAL = 1.0
"""Seconds between two reads of the job's output."""

MAX_PAUSE = 15
"""Seconds between two queries of the controller, which also serves others."""


class _StopFollowing(Exception):
    """A signal has arrived; the argument is its number."""


def follow(job: QueuedJob, ask: SlurmCommand, pause: Callable[[float], None] = time.sleep) -> int:
    """Show a job's output and states until it ends; return its exit code, or that of a signal.

    The job's standard output and standard error go to the same streams here; its states go to standard
    error.

    Raises:
        MachineError: the output can't be written.

    """
    for each in ENDING_SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _stop_following)
    shown: dict[Path, int] = {}
    try:
        return _follow(job, ask, pause, shown)
    except (_StopFollowing, BrokenPipeError) as left:
        # BrokenPipeError: the reader of our output has exited.
        complain("", f"clusterrun: {_continues_message(job, shown)}")
        return exit_code_of_signal(
            left.args[0] if isinstance(left, _StopFollowing) else signal.SIGPIPE
        )
    except OSError as error:
        why = f"what the job prints can't be written: {error.strerror}"
        raise MachineError(why, _continues_message(job, shown)) from None


def _stop_following(number: int, _frame: FrameType | None) -> None:
    # A second signal must not prevent the last line.
    for each in ENDING_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise _StopFollowing(number)


def _continues_message(job: QueuedJob, paths: Iterable[Path]) -> str:
    files = shell_line(map(str, paths))
    see = f"tail -f {files}" if files else job.line("squeue -j")
    return f"job {job.number} continues; to see it: {see}; to end it: {job.line('scancel')}"


def _follow(
    job: QueuedJob, ask: SlurmCommand, pause: Callable[[float], None], shown: dict[Path, int]
) -> int:
    """Follow the job; ``shown`` gets the number of bytes shown of each output file."""
    printed, seconds, state = "", 0, JobState("")
    while state.exit_code is None:
        answer = ask(job.line("scontrol --oneliner show job").split())
        if "JobState=" in answer.out:
            state = parse_job_state(answer.out)
            text = state.words
        elif answer.code == 0 or "Invalid job id" in answer.error_text:
            # Slurm forgets a job some minutes after its end.
            complain(f"clusterrun: Slurm does not know how job {job.number} has ended")
            return 1
        else:
            # A controller that restarts or is busy will answer later.
            text = f"Slurm does not answer: {answer.error_text}"
        if text != printed:
            printed = text
            complain(f"clusterrun: job {job.number}: {text}")
        _show_output(state, shown)
        # Pauses are short at first, for jobs that start or fail at once.
        seconds = min(seconds + 1, MAX_PAUSE)
        for _ in range(seconds if state.exit_code is None else 0):
            pause(POLL_INTERVAL)
            _show_output(state, shown)
    complain(f"clusterrun: job {job.number} has ended: {state.words}, exit code {state.exit_code}")
    return state.exit_code


def _show_output(state: JobState, shown: dict[Path, int]) -> None:
    """Copy new output from the job's files."""
    for path, stream in ((state.output, sys.stdout), (state.error, sys.stderr)):
        # The stream is None if the parent process has closed it.
        while path and stream and (data := _read_new_output(path, shown)):
            stream.buffer.write(data)
            stream.flush()


def _read_new_output(path: Path, shown: dict[Path, int]) -> bytes:
    """Return new data of a file on a shared file system, which may not exist yet.

    A file that has become shorter is read from its beginning.
    """
    begin = shown.setdefault(path, 0)
    try:
        with path.open("rb") as file:
            begin = begin if begin <= file.seek(0, 2) else 0
            file.seek(begin)
            data = file.read(1 << 20)
    except OSError:
        return b""
    shown[path] = begin + len(data)
    return data
