"""Where ``clusterrun`` begins: what is done before the rest, and on systems that it is not for."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from clusterrun.cli.entry import main
from clusterrun.cli.main import run_command_line, version_text

from tests.imports import imports
from tests.waiting import wait_until

ELSEWHERE = f"""
import signal, sys
sys.platform = sys.argv[1]
for name in dir(signal):
    # What Windows has not.
    if name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "pthread_sigmask", "set_wakeup_fd"):
        delattr(signal, name)
{imports(main)}
sys.exit(main())
"""

BEFORE_THE_REST = f"""
import gc, os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {run_command_line.__module__!r}:
            exec(sys.argv[1], globals())

sys.meta_path.insert(0, Finder())
{imports(main)}
main()
"""
"""Executes its argument when what the command line needs is about to be imported."""

HAS_MORE_TO_DO = f"""
import atexit, sys
{imports(main)}
atexit.register(print, "at exit")
sys.argv = ["clusterrun", "--version"]
main()
print("after main")
"""


def run(*words: str, around: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run Python with these words, ``around`` being a command that executes the one behind it."""
    return subprocess.run(
        [*around, sys.executable, *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_during_imports_exits(number: signal.Signals) -> None:
    """One line and the signal's exit code, and no traceback out of an import."""
    done = run("-c", BEFORE_THE_REST, f"os.kill(os.getpid(), {int(number)})")

    line = f"clusterrun: received {number.name} before any worker was started\n"
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", line)


@pytest.mark.parametrize("words", [("--help", "all"), ("topo", "--json")], ids=" ".join)
def test_interrupted_print_says_nothing(words: tuple[str, ...], eight_gpus: Path) -> None:
    """No worker would be started, so there is nothing to say about one."""
    root = () if "topo" not in words else ("--machine-root", str(eight_gpus))
    command = (sys.executable, "-c", f"{imports(main)}\nmain()", *words, *root)
    read_end, write_end = os.pipe()
    full = fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096).to_bytes(4, sys.byteorder)
    with (
        subprocess.Popen(command, stdout=write_end, stderr=subprocess.PIPE) as printing,
        # Closed first, so it ends in any case.
        os.fdopen(read_end),
    ):
        os.close(write_end)
        # What it prints is longer, as in a pager.
        wait_until(lambda: fcntl.ioctl(read_end, termios.FIONREAD, bytes(4)) == full)
        printing.send_signal(signal.SIGINT)
        _, error = printing.communicate(timeout=60)

    assert (printing.returncode, error) == (130, b"")


def test_closed_standard_streams_are_opened_first() -> None:
    """Otherwise the first opened file would get their descriptors, and be written to."""
    look = """
null = os.stat(os.devnull)
os._exit(10 + sum(os.path.samestat(os.fstat(each), null) for each in (0, 1, 2)))
"""

    done = run("-c", BEFORE_THE_REST, look, around=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"))

    assert done.returncode == 13


def test_the_garbage_collector_is_off_during_imports() -> None:
    """They leave no garbage, and all nodes would wait for it."""
    done = run("-c", BEFORE_THE_REST, "os._exit(gc.isenabled())")

    assert done.returncode == 0


def test_process_exits_when_output_is_written() -> None:
    """Nothing that Python does at its exit is waited for."""
    done = run("-c", HAS_MORE_TO_DO)

    assert (done.returncode, done.stdout) == (0, f"{version_text()}\n")


@pytest.mark.parametrize(
    ("platform", "what_to_do"),
    [
        ("win32", "Windows: run it in WSL 2 (wsl --install) or in a Linux container"),
        ("darwin", "macOS: run it in a Linux container or a virtual machine"),
        ("freebsd14", "freebsd14: run it in a Linux container or a virtual machine"),
    ],
)
def test_other_systems_are_rejected(platform: str, what_to_do: str) -> None:
    """Even without the signals that Windows lacks."""
    done = run("-c", ELSEWHERE, platform)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"clusterrun: error: clusterrun runs on Linux, not on {what_to_do}\n"
