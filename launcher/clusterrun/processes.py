"""What every process of the launcher does with its descriptors, its children and its threads."""

import gc
import os

# ``os`` has the same functions, and on Linux takes them from here. Debuggers replace those of ``os``, so
# as to follow into child processes: not into our helpers, which close all descriptors.
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
from typing import Any, NoReturn, TypeVar

from clusterrun.signals import signal_name

SECONDS_BETWEEN_CHECKS = 0.05

SECONDS_TO_DIE = 1.0
"""After SIGKILL: a child that hangs in the kernel, in a driver or on a file server, outlives it."""

ALARM_GRACE_SECONDS = 10.0
"""After its time a child ends itself, if nobody has: who started it may be stopped by Ctrl-Z."""

MAX_KEPT = 1 << 20
"""Bytes of an answer, and of errors, that are kept: the first ones."""

READS_AT_ONCE = 16
"""Of 64 KiB: a program may print faster than it is read."""

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""

PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h."""

ResultT = TypeVar("ResultT")


def close_all_but(keep: Collection[int]) -> None:
    """Close every open descriptor of this process that is not in ``keep``.

    ``os.closerange`` would take minutes where the limit is 1,073,741,816 and Python was built
    without close_range (conda's).
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in keep:
            # The descriptor that listed the folder is closed already.
            with suppress(OSError):
                os.close(int(entry.name))


@contextmanager
def blocked(*signals: int) -> Iterator[set[int]]:
    """Block these signals meanwhile; yield what was blocked before."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield {*mask}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def forked(child: Callable[[], object]) -> int:
    """Fork a child that calls ``child`` and exits, with 1 after an exception; return its process id.

    The child has every signal blocked: none of the launcher's handlers may run in it, and a Ctrl-C
    that reaches both must not be written to the launcher's wake-up pipe twice.

    Raises:
        OSError: no process can be started.

    """
    with blocked(*signal.valid_signals()):
        pid = posix.fork()
        if pid == 0:
            _call_and_exit(child)
    return pid


def python_options(options: str) -> str:
    """Return options of one letter for a Python, ``-u``, with the one of this process for debuggers.

    That is ``-X frozen_modules=off``. Without it, pydevd warns that it may miss breakpoints.
    """
    # Documented, in spite of its name. Pythons before 3.11 ignore the option.
    is_asked = sys._xoptions.get("frozen_modules") == "off"  # noqa: SLF001
    return f"{options}Xfrozen_modules=off" if is_asked else options


def is_fork_patched() -> bool:
    """Whether something has replaced ``os.fork``, as debuggers do to follow into child processes."""
    return os.fork is not posix.fork


def stop_tracing() -> None:
    """Let no debugger, profiler or coverage tool of the parent call into this forked process.

    The threads that serve it are gone, and its descriptors will be closed.
    """
    if sys.gettrace() is not None or sys.getprofile() is not None:
        # The functions of C, as pydevd replaces ``sys.settrace`` by one that warns.
        import ctypes

        ctypes.pythonapi.PyEval_SetTrace(None, None)
        ctypes.pythonapi.PyEval_SetProfile(None, None)
    threading.settrace(None)
    threading.setprofile(None)
    if hasattr(sys, "monitoring"):  # since Python 3.12
        _stop_monitoring(sys.monitoring)
    constants = sys.modules.get("_pydevd_bundle.pydevd_constants")
    # Without this function, pydevd would trace each new thread here, as long as it has a debugger.
    forget_debugger = getattr(constants, "set_global_debugger", None)
    if callable(forget_debugger):
        forget_debugger(None)


def _stop_monitoring(monitoring: Any) -> None:
    # Events may be set for single functions, too, as by a breakpoint: so their callbacks go.
    events = [each for each in vars(monitoring.events).values() if each.bit_count() == 1]
    for tool in filter(monitoring.get_tool, range(6)):
        for event in events:
            monitoring.register_callback(tool, event, None)


def _call_and_exit(child: Callable[[], object]) -> NoReturn:
    status = 1
    try:
        stop_tracing()
        child()
        status = 0
    finally:
        # After any exception: no traceback, and no exit handlers of the launcher.
        os._exit(status)


class TimeLimitedChild:
    """A child process that answers on a pipe, and is killed when its time is over.

    It leads a process group of its own, and has none of our descriptors: no connection and no output
    of ours stays open while it hangs. Where it can't be killed by us, it ends with the thread that
    started it, and by its own alarm some time later.
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
            ask: a function, which returns the answer; if it raises, the answer is b"", and nothing
                is printed. Or a program's path and arguments, whose standard output is the answer.
            seconds: its time.
            environ: the program's variables.
            now: seconds of the clock that ``answer`` is given; None: of ``time.monotonic``.

        Raises:
            OSError: no process can be started.

        """
        self.is_late = False
        """It was killed because its time was over."""
        self._until = (time.monotonic() if now is None else now) + seconds
        self._answer = bytearray()
        self._errors = bytearray()
        self._pipes: list[int] = []
        self._unread: dict[int, bytearray] = {}
        """Pipes that have not ended, and what is read from each."""
        writing: list[int] = []
        try:
            for kept in [self._answer] if callable(ask) else [self._answer, self._errors]:
                reading, write = os.pipe2(os.O_CLOEXEC)
                self._pipes.append(reading)
                writing.append(write)
                os.set_blocking(reading, False)
                self._unread[reading] = kept
            live = partial(_live_asked, ask, writing, seconds, environ or {}, os.getpid())
            self._pid = self._group = forked(live)
        except OSError:
            self._close()
            raise
        finally:
            for descriptor in writing:
                os.close(descriptor)
        # Here and in the child: whichever comes first.
        with suppress(OSError):
            os.setpgid(self._pid, self._pid)

    def fileno(self) -> int:
        """Return the pipe of the answer; ``end`` closes it."""
        return self._pipes[0]

    @property
    def errors(self) -> bytes:
        """What a program has written to its standard error, or why it can't be executed."""
        return bytes(self._errors)

    def answer(self, now: float) -> bytes | None:
        """Return the answer once it has ended; None: not yet. Never waits.

        A child that was killed leaves half an answer or none. Once its time is over it is killed, and
        ``is_late`` is true.
        """
        self._read()
        if self._unread and now >= self._until:
            self.is_late = True
            self._kill()
        return None if self._unread else bytes(self._answer)

    @property
    def has_ended(self) -> bool:
        """Whether the child itself is gone: one that hangs in the kernel outlives SIGKILL."""
        self._reap(0.0)
        return not self._pid

    def wait(self) -> bytes:
        """Return what ``answer`` returns in the end, and ``end`` the child."""
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
        """Kill its group, if it lives, and wait for its end, ``seconds`` at most; 0.0: never."""
        self._read()
        self._kill()
        self._close()
        self._reap(seconds)

    def _read(self) -> None:
        for pipe, kept in list(self._unread.items()):
            with suppress(BlockingIOError):
                for _ in range(READS_AT_ONCE):
                    chunk = os.read(pipe, 1 << 16)
                    # The rest is read, too: a child must not block when the pipe is full.
                    kept.extend(chunk[: MAX_KEPT - len(kept)])
                    if not chunk:
                        del self._unread[pipe]
                        break

    def _kill(self) -> None:
        # Only while a pipe has not ended, or it is our child still: then one of the group lives.
        # Otherwise the number may be another process's, because an agent reaps all its children.
        group = self._group if self._unread or not self.has_ended else 0
        if group:
            # A program may have become another user's.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self._unread.clear()

    def _close(self) -> None:
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes.clear()

    def _reap(self, seconds: float) -> None:
        if self._pid and reap_child(self._pid, seconds) is not None:
            self._pid = 0


def _live_asked(
    ask: Callable[[], bytes] | Sequence[str],
    writing: Sequence[int],
    seconds: float,
    environ: Mapping[str, str],
    parent: int,
) -> None:
    # An object of ours that is finalized here could close a descriptor with a reused number.
    gc.disable()
    os.setpgid(0, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate([nowhere] * 3 if callable(ask) else [nowhere, *writing]):
        os.dup2(descriptor, number)
    close_all_but({0, 1, 2, *writing} if callable(ask) else {0, 1, 2})
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    # It goes on after exec.
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
    """Have this forked process outlive its parent, and get the orphans of all that it starts.

    It has the descriptors 0, 1, 2 and ``keep``. Its parent ends it by closing one; ``end_children``
    is to be called then.
    """
    # Imported only here: our own process does not need it.
    import ctypes

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    close_all_but({0, 1, 2, *keep})
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill all children of this process, and what becomes its child when they die."""
    # At the start it would delay the first worker.
    import psutil

    while children := psutil.Process().children():
        for child in children:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)


def set_parent_death_signal(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send a signal to this process when the thread of ``parent`` that forked it ends."""
    # Imported only here: our own process does not need it.
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def reap_child(pid: int, seconds: float) -> int | None:
    """Reap child ``pid``, if it ends in time: not even SIGKILL ends one that hangs in the kernel.

    Returns its ``wait`` status, 0 if it was reaped before, or None if it still runs.
    """
    deadline = time.monotonic() + seconds
    # Blocked, so that the end cannot come between a look and the wait for it. A pidfd would do,
    # but Linux before 5.3 has none, nor has the Python of conda (python-trio/trio#2855).
    with blocked(signal.SIGCHLD):
        while (status := _status_by_now(pid)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            # In steps: another thread, which does not block the signal, may have taken it.
            signal.sigtimedwait({signal.SIGCHLD}, min(left, SECONDS_BETWEEN_CHECKS))
    return status


def _status_by_now(pid: int) -> int | None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return status if ended else None


def describe_wait_status(status: int) -> tuple[str, int]:
    """Return "exited with code 1" and 0, or "was killed by SIGKILL" and 9, for a ``wait`` status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by {signal_name(number)}", number
    return f"exited with code {os.WEXITSTATUS(status)}", 0


class TimeLimitedCalls:
    """Runs work on files that may hang, ``seconds`` each at most; after one that hangs, no more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._hangs = False

    def run(self, work: Callable[[], ResultT]) -> ResultT | None:
        """Return what ``work`` returns; None if it is not done in time. It must not raise."""
        if self._hangs:
            return None
        results: list[ResultT] = []
        # No signal ends a system call that waits for a file server, but its thread can be abandoned.
        thread = start_thread(lambda: results.append(work()))
        if thread is None:
            return None
        thread.join(self._seconds)
        self._hangs = thread.is_alive()
        return results[0] if results else None


def start_thread(work: Callable[[], object]) -> threading.Thread | None:
    """Return the thread that does ``work``; None if a limit of processes allows no thread."""
    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def boot_id() -> str:
    """Return the kernel's id of this boot, which its containers share; "" where it is hidden."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def raise_descriptor_limit(count: int) -> int:
    """Raise this process's limit of open files to ``count``; return how many of these it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
