"""Runs Python code as another user, who can read everything: with root's rights nothing is refused."""

import subprocess
import sys

OTHER_USER = 54321
MAY_WRITE = "+dac_override,+dac_read_search"
MAY_READ = "+dac_read_search"


def run_as_another_user(
    code: str,
    *arguments: str,
    capabilities: str = MAY_WRITE,
    processes: int | None = None,
    user: int = OTHER_USER,
) -> subprocess.CompletedProcess[str]:
    """Return how ``code`` ended, with a limit of processes if there is one to set."""
    identity = (f"--reuid={user}", "--clear-groups")
    caps = (f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}")
    limit = () if processes is None else ("prlimit", f"--nproc={processes}")
    return subprocess.run(
        ["setpriv", *identity, *caps, *limit, sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
