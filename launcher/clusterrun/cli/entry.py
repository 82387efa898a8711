"""Where ``clusterrun`` begins: signals are armed before anything else is imported."""

import gc
import os
import select
import signal
import sys
from types import FrameType

ELSEWHERE = {
    "win32": "Windows: run it in WSL 2 (wsl --install) or in a Linux container",
    "darwin": "macOS: run it in a Linux container or a virtual machine",
}
"""Systems other than Linux, by Python's name for them, and what to do there."""


def main() -> int:
    """Run the command line of this process; return its exit code."""
    if sys.platform != "linux":
        return _refuse_to_run_on(sys.platform)
    _arm_signals()
    _open_closed_streams()
    # Imports leave no garbage, and looking for it all the while takes a tenth of their time.
    gc.disable()
    # Imported only now: from here on a signal ends us in order.
    from clusterrun.cli.main import run_command_line

    gc.freeze()
    gc.enable()
    code = run_command_line(sys.argv[1:], os.environ, sys.argv[0].rpartition("/")[2])
    # All is written. Python would spend 15 ms on taking itself apart.
    os._exit(code)


def _arm_signals() -> None:
    """Until there are workers, a signal has nothing to end but us, and nobody to be passed on to."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # What nohup or a shell's "&" ignores stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


def _leave(number: int, _frame: FrameType | None) -> None:
    name = signal.Signals(number).name
    standard_error = select.poll()
    standard_error.register(2, select.POLLOUT)
    # A terminal that is stopped must not hold up the end.
    if standard_error.poll(0) == [(2, select.POLLOUT)]:
        os.write(2, f"clusterrun: {name} before any worker was started\n".encode())
    os._exit(128 + number)


def _open_closed_streams() -> None:
    """Give descriptors 0, 1 and 2 a meaning, or the next file opened would become one of them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _refuse_to_run_on(platform: str) -> int:
    where = ELSEWHERE.get(platform, f"{platform}: run it in a Linux container or a virtual machine")
    sys.stderr.write(f"clusterrun: error: clusterrun runs on Linux, not on {where}\n")
    return 2
