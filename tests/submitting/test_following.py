"""A job that is followed by a command whose output nobody takes, or who is interrupted; it goes on."""

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

GOES_ON = "clusterrun: job 7 goes on; to see it: tail -f "


@pytest.fixture
def cluster(folder: Path) -> Path:
    """Return the folder of a cluster whose job runs, and has printed a line."""
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


def test_a_reader_that_has_seen_enough(cluster: Path) -> None:
    """As ``| head -1`` has."""
    following = followed(cluster, subprocess.PIPE)
    assert following.stdout is not None
    assert following.stdout.readline() == b"first line\n"
    following.stdout.close()
    with (cluster / "7.out").open("a") as file:
        file.write("second line\n")

    _, errors = following.communicate(timeout=30)

    assert following.returncode == 141
    assert GOES_ON in errors.decode()


def test_a_full_disk(cluster: Path) -> None:
    """An error of this machine, not the job's end."""
    with Path("/dev/full").open("wb") as full:
        following = followed(cluster, full)
    _, errors = following.communicate(timeout=30)

    assert following.returncode == 3
    assert (
        "error: what the job prints can't be written: No space left on device\n  job 7 goes on"
        in errors.decode()
    )


def test_without_standard_output(cluster: Path) -> None:
    """The exit code alone is asked for."""
    (cluster / "ended").touch()

    following = followed(cluster, subprocess.DEVNULL, redirection=">&-")
    _, errors = following.communicate(timeout=30)

    assert following.returncode == 0, errors
    assert "job 7 has ended: COMPLETED, exit code 0" in errors.decode()


def test_impatient_interrupts(cluster: Path) -> None:
    """The last line is printed once."""
    following = followed(cluster, subprocess.PIPE)
    assert following.stdout is not None
    assert following.stdout.readline() == b"first line\n"
    for _ in range(20):
        following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=30)

    assert following.returncode == 130
    assert errors.decode().count(GOES_ON) == 1
    assert "Traceback" not in errors.decode()
