"""``--launcher ssh`` with a program in ssh's place, which runs the command on this machine."""

import os
import re
from pathlib import Path

import pytest

from tests.contract.launched import Ended, Launcher

HERE = """\
#!/bin/sh
# ssh, if all hosts were this one: the last word is the command.
echo "$@" >> {folder}/words
for command; do :; done
exec sh -c "$command"
"""

NOWHERE = """\
#!/bin/sh
echo + >> {folder}/log
sleep 0.2
echo - >> {folder}/log
echo "ssh: connect to host x port 22: Connection refused" >&2
exit 255
"""


@pytest.fixture
def clusterrun(tmp_path: Path) -> Launcher:
    """Return what starts jobs in a folder."""
    return Launcher(tmp_path)


def over(launcher: Launcher, program: str, *options: str, script: str) -> Ended:
    """Run a script with ``program`` as ssh."""
    folder = launcher.folder / "bin"
    folder.mkdir()
    ssh = folder / "ssh"
    ssh.write_text(program.format(folder=launcher.folder))
    ssh.chmod(0o755)
    environ = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    job = launcher.script(script, "--launcher", "ssh", *options, environ=environ)
    try:
        return job.ended()
    finally:
        launcher.close()


def test_one_host(clusterrun: Launcher) -> None:
    """The job runs as without ssh; the report is printed once."""
    script = """
    import os, sys

    print("rank", os.environ["RANK"], os.environ["LOCAL_WORLD_SIZE"], sys.argv[1:])
    sys.exit(3 if os.environ["RANK"] == "1" else 0)
    """
    options = ("--hosts", "localhost", "--nproc-per-node", "2", "--ssh-options", "-p 22 -i 'a b'")

    end = over(clusterrun, HERE, *options, script=script)

    assert end.code == 3, end
    assert sorted(end.out.splitlines()) == ["[rank 0] rank 0 2 []", "[rank 1] rank 1 2 []"]
    assert len(re.findall("clusterrun: rank 1 on .* failed: exit code 3", end.err)) == 1
    words = (clusterrun.folder / "words").read_text()
    assert "-o BatchMode=yes" in words
    assert "-p 22 -i a b -- localhost exec /bin/sh -c" in words
    assert "Host" not in words.replace("localhost", "")


@pytest.mark.parametrize("parallel", [3, 10])
def test_a_bound_on_connections_at_a_time(parallel: int, clusterrun: Launcher) -> None:
    """Of 40 hosts no more are being reached, and all that fail are named in one error."""
    options = ("--hosts", "gpu-[01-40]", "--ssh-parallel", str(parallel))

    end = over(clusterrun, NOWHERE, *options, script="")

    opened = most = 0
    for line in (clusterrun.folder / "log").read_text().split():
        opened += 1 if line == "+" else -1
        most = max(most, opened)
    assert end.code == 4, end
    assert most == parallel
    assert end.err.startswith(
        "clusterrun: error: 40 of 40 hosts are not ready; nothing was started\n"
        "  gpu-01, gpu-02, gpu-03, gpu-04, gpu-05, gpu-06, gpu-07, ... and 33 more:"
        " no ssh server listens there\n"
    )
