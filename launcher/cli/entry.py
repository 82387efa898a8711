"""Where ``clusterrun`` begins: signals are armed before anything else is imported."""

import gc
import os
import signal
import sys
from types import FrameType

TOO_EARLY_TO_PASS_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> int:
    """Run the command line of this process; return its exit code."""
    _arm_signals()
    if sys.platform != "linux":
        return _refuse(f"clusterrun runs on Linux, not on {sys.platform}")
    _open_closed_streams()
    # Imports leave no garbage, and looking for it all the while takes a tenth of their time.
    gc.disable()
    # Imported only now: from here on a signal ends us in order.
    from launcher.cli.run import run  # noqa: PLC0415 - see above

    gc.freeze()
    gc.enable()
    code = run(sys.argv[1:], os.environ, sys.argv[0].rpartition("/")[2])
    # All is written. Python would spend 15 ms on taking itself apart.
    os._exit(code)


def _arm_signals() -> None:
    """Until there are workers, a signal has nothing to end but us, and nobody to be passed on to."""
    for number in ENDING:
        # What nohup or a shell's "&" ignores stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    for number in TOO_EARLY_TO_PASS_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


def _leave(number: int, _frame: FrameType | None) -> None:
    name = signal.Signals(number).name
    os.write(2, f"clusterrun: {name} before any worker was started\n".encode())
    os._exit(128 + number)


def _open_closed_streams() -> None:
    """Give descriptors 0, 1 and 2 a meaning, or the next file opened would become one of them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - os takes it by position only
    os.close(descriptor)


def _refuse(message: str) -> int:
    sys.stderr.write(f"clusterrun: error: {message}\n")
    return 2
