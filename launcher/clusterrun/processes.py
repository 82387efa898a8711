"""Descriptors, child processes and threads of the launcher's processes."""

import gc
import os

# The functions that ``os`` re-exports. Debuggers replace those of ``os`` to follow into child processes,
# which fails in our helpers because these close all descriptors.
import posix
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from clusterrun.errors import MachineError
from clusterrun.signals import signal_name

SECONDS_BETWEEN_CHECKS = 0.05

SECONDS_TO_DIE = 1.0
"""After SIGKILL. A child that hangs in the kernel, in a driver or on a file server, takes longer."""

ALARM_GRACE_SECONDS = 10.0
"""A child kills itself so long after its time limit: the process that started it may be stopped (Ctrl-Z)."""

MAX_KEPT = 1 << 20
"""Bytes of a child's answer, and of its errors, that are kept; the rest is dropped."""

READS_AT_ONCE = 16
"""Reads of 64 KiB per call: a program may print faster than it is read."""

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""

PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h."""

ResultT = TypeVar("ResultT")


def close_all_but(keep: Collection[int]) -> None:
    """Close every open descriptor of this process that is not in ``keep``.

    ``os.closerange`` would take minutes if the limit is 1,073,741,816 and Python was built
    without close_range, as conda's is.
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in keep:
            # The descriptor that listed the directory is closed already.
            with suppress(OSError):
                os.close(int(entry.name))


@contextmanager
def blocked(*signals: int) -> Iterator[set[int]]:
    """Block signals in this thread meanwhile; yield the signals that were blocked before."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield {*mask}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def forked(child: Callable[[], object]) -> int:
    """Fork a child that calls ``child`` and exits, with 1 after an exception; return its pid.

    All signals are blocked in the child: the launcher's handlers must not run in it, and a Ctrl-C
    that reaches both processes must not be written to the launcher's wake-up pipe twice.

    Raises:
        OSError: no process can be started.

    """
    with blocked(*signal.valid_signals()):
        pid = posix.fork()
        if pid == 0:
            status = 1
            try:
                stop_tracing()
                child()
                status = 0
            finally:
                # After any exception, without a traceback and without the launcher's exit handlers.
                os._exit(status)
    return pid


def python_options(options: str) -> str:
    """Return one-letter Python options such as ``-u``, with ``-X frozen_modules=off`` if this process has it.

    Without that option, pydevd warns that it may miss breakpoints.
    """
    # sys._xoptions is documented. Pythons before 3.11 ignore the option.
    is_asked = sys._xoptions.get("frozen_modules") == "off"  # noqa: SLF001
    return f"{options}Xfrozen_modules=off" if is_asked else options


def is_fork_patched() -> bool:
    """Return whether ``os.fork`` was replaced, as debuggers do to follow into child processes."""
    return os.fork is not posix.fork


def stop_tracing() -> None:
    """Detach the parent's debugger, profiler or coverage tool from this forked process.

    Their threads do not exist in the child, and their descriptors will be closed.
    """
    if sys.gettrace() is not None or sys.getprofile() is not None:
        # The C functions, because pydevd replaces ``sys.settrace`` with one that warns.
        import ctypes

        ctypes.pythonapi.PyEval_SetTrace(None, None)
        ctypes.pythonapi.PyEval_SetProfile(None, None)
    threading.settrace(None)
    threading.setprofile(None)
    if hasattr(sys, "monitoring"):  # since Python 3.12
        _stop_monitoring(sys.monitoring)
    constants = sys.modules.get("_pydevd_bundle.pydevd_constants")
    # pydevd traces each new thread as long as it has a global debugger.
    set_debugger = getattr(constants, "set_global_debugger", None)
    if callable(set_debugger):
        set_debugger(None)


def _stop_monitoring(monitoring: Any) -> None:
    # A breakpoint sets events for single functions too, so all callbacks are removed.
    events = [each for each in vars(monitoring.events).values() if each.bit_count() == 1]
    for tool in filter(monitoring.get_tool, range(6)):
        for event in events:
            monitoring.register_callback(tool, event, None)


class TimeLimitedChild:
    """A child process that answers on a pipe, and is killed when its time is over.

    It leads its own process group and inherits none of our descriptors, so none of our connections
    and outputs stays open while it hangs. If we can't kill it, it is killed when the thread that
    started it ends, or by its own alarm some time later.
    """

    def __init__(
        self,
        ask: Callable[[], bytes] | Sequence[str],
        seconds: float,
        environ: Mapping[str, str] | None = None,
        now: float | None = None,
    ) -> None:
        """Start it.

        Args:
            ask: a function that returns the answer; if it raises, the answer is b"" and nothing is
                printed. Or a program's path and arguments; its standard output is the answer.
            seconds: the time limit.
            environ: the program's environment.
            now: the current time by the clock that ``answer`` is given; None: ``time.monotonic()``.

        Raises:
            OSError: no process can be started.

        """
        self.is_late = False
        """Whether it was killed because its time was over."""
        self._until = (time.monotonic() if now is None else now) + seconds
        self._answer = bytearray()
        self._errors = bytearray()
        self._pipes: list[int] = []
        self._unread: dict[int, bytearray] = {}
        """The open pipes, and what was read from each."""
        writing: list[int] = []
        try:
            for kept in [self._answer] if callable(ask) else [self._answer, self._errors]:
                reading, write = os.pipe2(os.O_CLOEXEC)
                self._pipes.append(reading)
                writing.append(write)
                os.set_blocking(reading, False)
                self._unread[reading] = kept
            run = partial(_run_child, ask, writing, seconds, environ or {}, os.getpid())
            self._pid = self._group = forked(run)
        except OSError:
            self._close()
            raise
        finally:
            for descriptor in writing:
                os.close(descriptor)
        # In both processes, because either may run first.
        with suppress(OSError):
            os.setpgid(self._pid, self._pid)

    def fileno(self) -> int:
        """Return the pipe of the answer, which ``end`` closes."""
        return self._pipes[0]

    @property
    def errors(self) -> bytes:
        """What the program has written to standard error, or why it can't be executed."""
        return bytes(self._errors)

    def answer(self, now: float) -> bytes | None:
        """Return the answer once the child has closed its pipes, None before that. Never waits.

        A child whose time is over is killed: ``is_late`` is then true, and the answer may be partial.
        """
        self._read()
        if self._unread and now >= self._until:
            self.is_late = True
            self._kill()
        return None if self._unread else bytes(self._answer)

    @property
    def has_ended(self) -> bool:
        """Whether the child has been reaped. A child that hangs in the kernel survives SIGKILL for a while."""
        self._reap(0.0)
        return not self._pid

    def wait(self) -> bytes:
        """Wait for the answer, ``end`` the child and return the answer."""
        try:
            while (answer := self.answer(now := time.monotonic())) is None:
                waiter = select.poll()
                for pipe in self._unread:
                    waiter.register(pipe, select.POLLIN)
                waiter.poll(1000 * (self._until - now))
        finally:
            self.end()
        return answer

    def end(self, seconds: float = SECONDS_TO_DIE) -> None:
        """Kill its process group, and wait at most ``seconds`` for the child to exit."""
        self._read()
        self._kill()
        self._close()
        self._reap(seconds)

    def _read(self) -> None:
        for pipe, kept in list(self._unread.items()):
            with suppress(BlockingIOError):
                for _ in range(READS_AT_ONCE):
                    chunk = os.read(pipe, 1 << 16)
                    # What exceeds the limit is read too: the child must not block on a full pipe.
                    kept.extend(chunk[: MAX_KEPT - len(kept)])
                    if not chunk:
                        del self._unread[pipe]
                        break

    def _kill(self) -> None:
        # While a pipe is open or the child is not reaped, the group exists. Later its number may be
        # reused, because an agent reaps all its children.
        if self._unread or not self.has_ended:
            # PermissionError: the program has changed its user.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
        self._unread.clear()

    def _close(self) -> None:
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes.clear()

    def _reap(self, seconds: float) -> None:
        if self._pid and reap_child(self._pid, seconds) is not None:
            self._pid = 0


def _run_child(
    ask: Callable[[], bytes] | Sequence[str],
    writing: Sequence[int],
    seconds: float,
    environ: Mapping[str, str],
    parent: int,
) -> None:
    # A finalizer of one of our objects could close a descriptor whose number is reused.
    gc.disable()
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate([null] * 3 if callable(ask) else [null, *writing]):
        os.dup2(descriptor, number)
    close_all_but({0, 1, 2, *writing} if callable(ask) else {0, 1, 2})
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    # The timer survives exec.
    signal.setitimer(signal.ITIMER_REAL, seconds + ALARM_GRACE_SECONDS)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    set_parent_death_signal(parent)
    if callable(ask):
        os.write(writing[0], ask())
        return
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        posix.execve(ask[0], [*ask], {**environ})
    except OSError as error:
        os.write(2, f"{Path(ask[0]).name} can't be executed: {error.strerror}".encode())


def become_subreaper(*keep: int) -> None:
    """Make this forked process survive its parent, and adopt the orphans of all that it starts.

    It keeps the descriptors 0, 1, 2 and ``keep``. Its parent tells it to end by closing one of them;
    it must then call ``end_children``.
    """
    # Not needed in the agent itself.
    import ctypes

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    close_all_but({0, 1, 2, *keep})
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill all children of this process, and the orphans that it adopts when they die."""
    # Not at the start, because it would delay the first worker.
    import psutil

    while children := psutil.Process().children():
        for child in children:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)


def set_parent_death_signal(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send a signal to this process when the thread of ``parent`` that forked it ends."""
    # Not needed in the agent itself.
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def reap_child(pid: int, seconds: float) -> int | None:
    """Wait at most ``seconds`` for child ``pid`` to exit, and reap it.

    Returns its wait status, 0 if it was reaped before, or None if it still runs. A child that hangs
    in the kernel may run on after SIGKILL.
    """
    deadline = time.monotonic() + seconds
    # SIGCHLD is blocked so that it can't arrive between the check and the wait. A pidfd would be
    # simpler, but Linux before 5.3 and conda's Python lack it (python-trio/trio#2855).
    with blocked(signal.SIGCHLD):
        while (status := _try_reap(pid)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            # In steps, because a thread that does not block the signal may have received it.
            signal.sigtimedwait({signal.SIGCHLD}, min(left, SECONDS_BETWEEN_CHECKS))
    return status


def _try_reap(pid: int) -> int | None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return status if ended else None


def describe_wait_status(status: int) -> tuple[str, int]:
    """Return "exited with code 1" and 0, or "was killed by SIGKILL" and 9, for a wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by {signal_name(number)}", number
    return f"exited with code {os.WEXITSTATUS(status)}", 0


class TimeLimitedCalls:
    """Runs functions that may hang on a file system, each for at most ``seconds``; none after one has hung."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._hangs = False

    def run(self, work: Callable[[], ResultT]) -> ResultT | None:
        """Return what ``work`` returns, or None if it takes too long. It must not raise."""
        if self._hangs:
            return None
        results: list[ResultT] = []
        # No signal interrupts a system call that waits for a file server, but its thread can be abandoned.
        thread = start_thread(lambda: results.append(work()))
        if thread is None:
            return None
        thread.join(self._seconds)
        self._hangs = thread.is_alive()
        return results[0] if results else None


def start_thread(work: Callable[[], object]) -> threading.Thread | None:
    """Start a daemon thread; return None if the process limit allows no thread."""
    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def boot_id() -> str:
    """Return the kernel's boot id, which all containers of a machine share; "" if it is hidden."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def raise_descriptor_limit(count: int) -> int:
    """Raise the limit of open files to ``count`` if it is lower; return how many of these are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def require_descriptors(needed: int, wanted: int, users: str) -> None:
    """Raise the limit of open files to ``wanted``, or to the hard limit if that is lower.

    Args:
        needed: open files without which the job can't run.
        wanted: open files of the worst case.
        users: what they are for, as in "64 workers".

    Raises:
        MachineError: fewer than ``needed`` are allowed.

    """
    allowed = raise_descriptor_limit(wanted)
    if allowed < needed:
        raise MachineError(
            f"this node needs {needed} open files for {users}, but its hard limit is {allowed}"
            " (ulimit -Hn)",
            f"raise it: ulimit -n {needed} as root; Docker has --ulimit nofile={needed},"
            f" systemd LimitNOFILE={needed}",
        )
