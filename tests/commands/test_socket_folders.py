"""The folders in which commands find the sockets of running jobs."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from clusterrun.cli.main import run_command_line

from tests.as_another_user import run_as_another_user
from tests.commands.run_commands import run_command
from tests.contract.launched import Launcher
from tests.imports import imports
from tests.waiting import wait_until

OTHER_USER = 54399
"""A user id that no other test uses."""


@pytest.mark.parametrize("runtime_of_command", ["", "/run/user/{user}"])
def test_job_with_other_tmpdir_is_found(
    clusterrun: Launcher, tmp_path: Path, runtime_of_command: str
) -> None:
    """Slurm sets TMPDIR for each job. The command may have XDG_RUNTIME_DIR, which the job does not have."""
    environ = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": ""}
    name = f"elsewhere-{os.getpid()}"
    script = "import time; print('begun'); time.sleep(60)"
    job = clusterrun.script(script, "--run-id", name, workers=1, environ=environ)
    job.wait_for("begun")
    there = {"TMPDIR": "/var/tmp", "XDG_RUNTIME_DIR": runtime_of_command.format(user=os.getuid())}

    wait_until(lambda: name in run_command(there, "ps").stdout, "the command finds it")
    stopped = run_command(there, "stop", name)

    assert stopped.returncode == 0, stopped.stderr
    assert job.ended().code == 143


RUNS = (
    imports(run_command_line)
    + """
import os, pathlib, sys, time
environ = {"PATH": os.environ["PATH"], "TMPDIR": sys.argv[1]}
script = pathlib.Path(sys.argv[1], "sees.py")
script.write_text('''
import os, pathlib, time
found, until = [], time.monotonic() + 20
while not found and time.monotonic() < until:
    found = list(pathlib.Path(f"/var/tmp/clusterrun-{os.getuid()}").glob("job-*"))
print("found", len(found), flush=True)
''')
print(run_command_line(["ps"], environ), flush=True)
print(run_command_line(["stop", "this"], environ), flush=True)
os.environ.pop("XDG_RUNTIME_DIR", None)
os.environ.update(environ)
print(run_command_line(["--nproc-per-node", "1", str(script)], dict(os.environ)), flush=True)
"""
)


@pytest.fixture
def taken() -> Iterator[Path]:
    """Return a folder that root owns, with the name of the other user's folder for sockets."""
    folder = Path(f"/tmp/clusterrun-{OTHER_USER}")
    folder.mkdir(mode=0o777)
    yield folder
    shutil.rmtree(folder)
    shutil.rmtree(f"/var/tmp/clusterrun-{OTHER_USER}", ignore_errors=True)


@pytest.mark.needs("root", "setpriv")
def test_folder_of_other_user_is_not_used(taken: Path, tmp_path: Path) -> None:
    """Commands ps and stop and the job report it, and the job listens in another folder."""
    os.chown(tmp_path, OTHER_USER, OTHER_USER)

    done = run_as_another_user(RUNS, str(tmp_path), user=OTHER_USER)

    warning = f"{taken} belongs to user 0, not to you: not used for the sockets of jobs"
    assert done.stdout.splitlines() == [
        "you have no clusterrun job on this host",
        warning,
        "0",
        "1",
        "found 1",
        "0",
    ], done.stderr
    assert done.stderr.count(warning) == 2
    assert f"clusterrun: warning: {warning}" in done.stderr
    assert list(taken.iterdir()) == []


RUN_WITHOUT_FOLDER = (
    imports(run_command_line)
    + """
import os, pathlib, sys
tmp = pathlib.Path(sys.argv[1])
script = tmp / "sees.py"
script.write_text('''
import os, pathlib, time
found, until = [], time.monotonic() + float(os.environ["SECONDS"])
while not found and time.monotonic() < until:
    found = list(pathlib.Path(os.environ["FOLDER"]).glob("clusterrun/job-*"))
print("found", len(found), flush=True)
''')
for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
    os.environ.pop(name, None)
words = ["--nproc-per-node", "1", str(script)]
run_command_line(words, {**os.environ, "FOLDER": str(tmp), "SECONDS": "1"})
print("second", file=sys.stderr, flush=True)
folder = {"FOLDER": str(tmp), "SECONDS": "20", "XDG_RUNTIME_DIR": str(tmp)}
run_command_line(words, {**os.environ, **folder})
"""
)


@pytest.mark.needs("root", "setpriv")
def test_warning_if_no_folder_is_usable(taken: Path) -> None:
    """The warning names XDG_RUNTIME_DIR, and with it the job has a socket."""
    other = Path(f"/var/tmp/clusterrun-{OTHER_USER}")
    with TemporaryDirectory() as own:
        os.chown(own, OTHER_USER, OTHER_USER)
        other.symlink_to(own)
        try:
            done = run_as_another_user(RUN_WITHOUT_FOLDER, own, user=OTHER_USER)
        finally:
            other.unlink()

    first, _, second = done.stderr.partition("second\n")
    assert done.stdout.splitlines() == ["found 0", "found 1"], done.stderr
    assert first == (
        "clusterrun: warning: clusterrun ps and stop can't find this run:"
        f" {taken} belongs to user 0, not to you; {other} belongs to user 0, not to you:"
        " not used for the sockets of jobs; set XDG_RUNTIME_DIR, for the job and for clusterrun ps"
        " and stop, to a folder that is yours alone\n"
    )
    assert "warning" not in second


@pytest.mark.needs("root")
def test_runtime_folder_of_other_user_is_not_used(tmp_path: Path) -> None:
    """After ``su`` or ``sudo -E`` root has the user's XDG_RUNTIME_DIR: it makes no folder there."""
    os.chown(tmp_path, OTHER_USER, OTHER_USER)

    run_command({"XDG_RUNTIME_DIR": str(tmp_path)}, "ps")

    assert list(tmp_path.iterdir()) == []
