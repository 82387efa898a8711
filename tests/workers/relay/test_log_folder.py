"""The folder for log files, checked before a job."""

import os
from pathlib import Path

import pytest
from clusterrun.errors import MachineError
from clusterrun.job.declarations import Setting
from clusterrun.workers.relay.routes import check_log_folder

from tests.as_another_user import MAY_READ, MAY_WRITE, run_as_another_user
from tests.imports import imports

CHECK = (
    imports(Setting, check_log_folder)
    + """
import sys
check_log_folder(Setting(sys.argv[1], '--log-dir'))
"""
)


@pytest.mark.needs("root", "setpriv")
def test_capabilities_count(tmp_path: Path) -> None:
    """A process that may write anywhere may use another user's folder."""
    ended = run_as_another_user(CHECK, str(tmp_path / "logs"), capabilities=MAY_WRITE)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_folder_that_takes_no_files() -> None:
    """Rights alone do not tell: /proc lets root in."""
    with pytest.raises(MachineError, match="log files can't be written there: /proc: "):
        check_log_folder(Setting("/proc/logs", "--log-dir"))


def test_a_current_folder_that_has_been_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative name leads nowhere."""
    deleted = tmp_path / "deleted"
    deleted.mkdir()
    monkeypatch.chdir(deleted)
    deleted.rmdir()

    with pytest.raises(MachineError, match="--log-dir logs: the current folder has been deleted"):
        check_log_folder(Setting("logs", "--log-dir"))


@pytest.mark.needs("root", "setpriv")
def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    """The error names the option, its value, and the folder that refuses."""
    ended = run_as_another_user(CHECK, str(tmp_path / "logs"), capabilities=MAY_READ)

    assert ended.stderr.splitlines()[-2] == (
        f"clusterrun.errors.MachineError: --log-dir {tmp_path}/logs: log files can't be written"
        f" there: {tmp_path}: Permission denied"
    )


def test_a_name_that_a_stranger_could_foresee_is_not_needed(tmp_path: Path) -> None:
    """What is made to see whether that is possible."""
    (tmp_path / f".clusterrun-{os.uname().nodename}-{os.getpid()}").touch()

    check_log_folder(Setting(str(tmp_path), "--log-dir"))

    assert len(list(tmp_path.iterdir())) == 1
