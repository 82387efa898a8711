"""The entry point of ``clusterrun``: what must be done before the rest is imported."""

import gc
import os
import sys

OTHER_SYSTEMS = {
    "win32": "Windows: run it in WSL 2 (wsl --install) or in a Linux container",
    "darwin": "macOS: run it in a Linux container or a virtual machine",
}
"""Other systems by ``sys.platform``: their names, and what to do there."""

CATCH_EXIT = ("cProfile", "profile", "trace")
"""Standard modules that run another one and write their results before any exit handler runs."""


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
    # All output is written, and Python's own exit takes 15 ms.
    os._exit(code)


def is_traced() -> bool:
    """Return whether a debugger, profiler or coverage tool is active; it writes its results at exit."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return True
    # Python 3.12 and newer.
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and any(map(monitoring.get_tool, range(6)))


def _keep_exit_code(code: int) -> None:
    """Make this process exit with ``code`` even under tools that catch SystemExit and exit with 0."""
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if code == 0 or program is None or program.name not in CATCH_EXIT:
        return
    import atexit

    def exit_with_code() -> None:
        try:
            # The tool's report, if it goes to standard output.
            sys.stdout.flush()
        finally:
            os._exit(code)

    atexit.register(exit_with_code)


def prepare_process() -> None:
    """Prepare this process before the rest of clusterrun is imported."""
    # Before anything is imported that a program does not find imported.
    _search_the_users_folders_last()
    _arm_signals()
    _open_closed_streams()
    # Imports leave no garbage, and the collector would take a tenth of their time. It is enabled when a
    # job runs: see run.launch and relay.loop.
    gc.disable()


def _arm_signals() -> None:
    """Until workers start, let signals end this process, or do nothing."""
    import select  # noqa: F401 - the handler can't be the first to import it
    import signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Signals that nohup or a shell's "&" ignores stay ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit_on_signal)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


def _exit_on_signal(number: int, _frame: object) -> None:
    import select
    import signal

    name = signal.Signals(number).name
    standard_error = select.poll()
    standard_error.register(2, select.POLLOUT)
    # A stopped terminal must not delay the exit.
    if standard_error.poll(0) == [(2, select.POLLOUT)]:
        os.write(2, f"clusterrun: received {name} before any worker was started\n".encode())
    os._exit(128 + number)


def exit_silently_on_signals() -> None:
    """Let signals end this process without a message, because it will not start workers."""
    import signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Tests and notebooks have their own handlers.
        if signal.getsignal(number) is _exit_on_signal:
            signal.signal(number, lambda number, _frame: os._exit(128 + number))


def _open_closed_streams() -> None:
    """Open descriptors 0, 1 and 2 if they are closed, so that no other file gets these numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _search_the_users_folders_last() -> None:
    """Import click and other dependencies from where clusterrun is installed.

    PYTHONPATH and ``python -m`` put the user's folders first, which may contain a ``click.py``. Workers
    are not affected, because they are other processes.
    """
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    try:
        users = {os.path.abspath(entry) for entry in (*path, "")}  # noqa: PTH100 - pathlib may be the user's too
        sys.path.sort(key=lambda entry: os.path.abspath(entry) in users)  # noqa: PTH100 - as above
    except FileNotFoundError:  # the current folder is deleted, and an entry is relative
        pass


def _refuse_to_run_on(platform: str) -> int:
    where = OTHER_SYSTEMS.get(
        platform, f"{platform}: run it in a Linux container or a virtual machine"
    )
    sys.stderr.write(f"clusterrun: error: clusterrun runs on Linux, not on {where}\n")
    return 2
