"""shellcheck's opinion of a script."""

import subprocess
import sys
from pathlib import Path


def complaints(script: str) -> str:
    """Return what shellcheck complains of in ``script``; "" if it has no complaint."""
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
