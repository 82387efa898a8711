"""Where ``clusterrun`` begins: what must be done before the rest is imported."""

import gc
import os
import select
import signal
import sys
from contextlib import suppress
from types import FrameType

OTHER_SYSTEMS = {
    "win32": "Windows: run it in WSL 2 (wsl --install) or in a Linux container",
    "darwin": "macOS: run it in a Linux container or a virtual machine",
}
"""Systems other than Linux, by Python's name for them, and what to do there."""

CATCH_EXIT = ("cProfile", "profile", "trace")
"""Modules of Python's own that run another one, and write what they found before any exit handler runs."""


def main() -> int:
    """Run the command line of this process; return its exit code."""
    if sys.platform != "linux":
        return _refuse_to_run_on(sys.platform)
    prepare_process()
    from clusterrun.cli.main import run_command_line

    code = run_command_line(sys.argv[1:], os.environ, sys.argv[0].rpartition("/")[2])
    if is_traced():
        _keep_exit_code(code)
        return code
    # All is written. Python's own exit takes 15 ms.
    os._exit(code)


def is_traced() -> bool:
    """Whether a debugger, profiler or coverage tool watches this process: it writes its file at the end."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return True
    # Python 3.12 and newer.
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and any(map(monitoring.get_tool, range(6)))


def _keep_exit_code(code: int) -> None:
    """Have this process end with ``code`` under those tools, too, that catch SystemExit and end with 0."""
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if code == 0 or program is None or program.name not in CATCH_EXIT:
        return
    import atexit

    def exit_with_code() -> None:
        try:
            # Their report, if it has no file.
            sys.stdout.flush()
        finally:
            os._exit(code)

    atexit.register(exit_with_code)


def prepare_process() -> None:
    """Do what must be done before more of clusterrun is imported."""
    _arm_signals()
    _open_closed_streams()
    _search_the_users_folders_last()
    # Imports leave no garbage, and the collector would take a tenth of their time. Only a job
    # runs long enough to need it: see run.launch and relay.loop.
    gc.disable()


def _arm_signals() -> None:
    """Until workers start, a signal ends this process alone, or does nothing."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # What nohup or a shell's "&" ignores stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit_on_signal)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    name = signal.Signals(number).name
    standard_error = select.poll()
    standard_error.register(2, select.POLLOUT)
    # A terminal that is stopped must not delay the exit.
    if standard_error.poll(0) == [(2, select.POLLOUT)]:
        os.write(2, f"clusterrun: {name} before any worker was started\n".encode())
    os._exit(128 + number)


def exit_silently_on_signals() -> None:
    """Have a signal end this process without a word, as what it does starts no worker."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Not in tests and notebooks, whose handlers are their own.
        if signal.getsignal(number) is _exit_on_signal:
            signal.signal(number, lambda number, _frame: os._exit(128 + number))


def _open_closed_streams() -> None:
    """Open descriptors 0, 1 and 2 if closed: else the next files opened would get these numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _search_the_users_folders_last() -> None:
    """Import click and the like from where clusterrun is installed.

    PYTHONPATH and ``python -m`` put folders of the user's first, and these may have a ``click.py``.
    Workers are not affected: their interpreter is another process.
    """
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # A relative entry has no meaning if the current folder is deleted.
    with suppress(FileNotFoundError):
        users = {os.path.abspath(entry) for entry in (*path, "")}  # noqa: PTH100 - pathlib may be the user's too
        sys.path.sort(key=lambda entry: os.path.abspath(entry) in users)  # noqa: PTH100 - as above


def _refuse_to_run_on(platform: str) -> int:
    where = OTHER_SYSTEMS.get(
        platform, f"{platform}: run it in a Linux container or a virtual machine"
    )
    sys.stderr.write(f"clusterrun: error: clusterrun runs on Linux, not on {where}\n")
    return 2
