"""``--follow`` that is interrupted, or can't write its output; the job continues."""

import os
import signal
import subprocess
from pathlib import Path
from typing import IO

import pytest

from tests.contract.launched import COMMAND, plain_environment

SCONTROL = """\
#!/bin/sh
state=RUNNING
[ ! -e "$FOLDER/ended" ] || state=COMPLETED
echo "JobId=7 JobName=train JobState=$state Reason=None ExitCode=0:0 StdOut=$FOLDER/7.out"
"""

CONTINUES = "clusterrun: job 7 continues; to see it: tail -f "


@pytest.fixture
def cluster(folder: Path) -> Path:
    """Return the folder of a simulated cluster, whose job runs and has printed a line."""
    for name, text in (("scontrol", SCONTROL), ("sbatch", "#!/bin/sh\necho 7\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "7.out").write_text("first line\n")
    return folder


def followed(
    folder: Path, out: "int | IO[bytes]", *, redirection: str = ""
) -> "subprocess.Popen[bytes]":
    (folder / "train.py").touch()
    words = [COMMAND, "submit", "--follow", "--exclusive", str(folder / "train.py")]
    return subprocess.Popen(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *words],
        env={**plain_environment(), "PATH": f"{folder}:{os.defpath}", "FOLDER": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
    )


def test_closed_reader_ends_following(cluster: Path) -> None:
    """For example ``| head -1``."""
    following = followed(cluster, subprocess.PIPE)
    assert following.stdout is not None
    assert following.stdout.readline() == b"first line\n"
    following.stdout.close()
    with (cluster / "7.out").open("a") as file:
        file.write("second line\n")

    _, errors = following.communicate(timeout=30)

    assert following.returncode == 141
    assert CONTINUES in errors.decode()


def test_full_disk_is_machine_error(cluster: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        following = followed(cluster, full)
    _, errors = following.communicate(timeout=30)

    assert following.returncode == 3
    assert (
        "error: what the job prints can't be written: No space left on device\n  job 7 continues"
        in errors.decode()
    )


def test_follow_without_standard_output(cluster: Path) -> None:
    """Only the exit code is of use then."""
    (cluster / "ended").touch()

    following = followed(cluster, subprocess.DEVNULL, redirection=">&-")
    _, errors = following.communicate(timeout=30)

    assert following.returncode == 0, errors
    assert "job 7 has ended: COMPLETED, exit code 0" in errors.decode()


def test_second_interrupt_does_not_lose_last_line(cluster: Path) -> None:
    following = followed(cluster, subprocess.PIPE)
    assert following.stdout is not None
    assert following.stdout.readline() == b"first line\n"
    for _ in range(20):
        following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=30)

    assert following.returncode == 130
    assert errors.decode().count(CONTINUES) == 1
    assert "Traceback" not in errors.decode()
