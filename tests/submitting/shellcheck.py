"""Check scripts with shellcheck."""

import subprocess
import sys
from pathlib import Path


def shellcheck_warnings(script: str) -> str:
    """Return shellcheck's warnings about ``script``."""
    command = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run(
        [command, "--color=never", "-"],
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr
