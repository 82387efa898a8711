"""Where ``clusterrun`` begins, on systems that it is not for."""

import subprocess
import sys

import pytest

from tests.cli.door import main
from tests.imports import imports

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


@pytest.mark.parametrize(
    ("platform", "what_to_do"),
    [
        ("win32", "Windows: run it in WSL 2 (wsl --install) or in a Linux container"),
        ("darwin", "macOS: run it in a Linux container or a virtual machine"),
        ("freebsd14", "freebsd14: run it in a Linux container or a virtual machine"),
    ],
)
def test_elsewhere_than_on_linux_one_line_says_what_to_do(platform: str, what_to_do: str) -> None:
    """Even without the signals that Windows lacks."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, platform],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"clusterrun: error: clusterrun runs on Linux, not on {what_to_do}\n"
