"""The folder for log files, looked at before a job."""

import subprocess
import sys
from pathlib import Path

import pytest

EXPECT = (
    "import sys\n"
    "from clusterrun.domain.facts import Fact\n"
    "from clusterrun.workers.relay.log_folder import expect_log_folder\n"
    "expect_log_folder(Fact(sys.argv[1], '--log-dir'))\n"
)


CAPABILITIES = "+dac_override,+dac_read_search"


@pytest.mark.needs("root", "setpriv")
def test_capabilities_count(tmp_path: Path) -> None:
    """Another user's folder is no trouble for a process that may write anywhere."""
    as_another = ("setpriv", "--reuid=54321", "--clear-groups", f"--inh-caps={CAPABILITIES}")

    ended = subprocess.run(
        [
            *(*as_another, f"--ambient-caps={CAPABILITIES}"),
            *(sys.executable, "-c", EXPECT, str(tmp_path / "logs")),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
