"""The check of the folder for log files before a job."""

import os
from pathlib import Path

import pytest
from clusterrun.errors import MachineError
from clusterrun.job.declarations import Setting
from clusterrun.workers.relay.routes import check_log_folder

from tests.as_another_user import MAY_READ, MAY_WRITE, OTHER_USER, run_as_another_user
from tests.imports import imports

CHECK = (
    imports(Setting, check_log_folder)
    + """
import sys
check_log_folder(Setting(sys.argv[1], '--log-dir'))
"""
)


@pytest.mark.needs("root", "setpriv")
def test_folder_of_another_user_is_usable_with_capabilities(tmp_path: Path) -> None:
    ended = run_as_another_user(CHECK, str(tmp_path / "logs"), capabilities=MAY_WRITE)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_folder_in_proc_is_an_error() -> None:
    """Permissions do not tell: root may enter /proc."""
    with pytest.raises(MachineError, match="log files can't be written there: /proc: "):
        check_log_folder(Setting("/proc/logs", "--log-dir"))


def test_relative_folder_in_a_deleted_current_folder_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = tmp_path / "deleted"
    deleted.mkdir()
    monkeypatch.chdir(deleted)
    deleted.rmdir()

    with pytest.raises(MachineError, match="--log-dir logs: the current folder has been deleted"):
        check_log_folder(Setting("logs", "--log-dir"))


@pytest.mark.needs("root", "setpriv")
@pytest.mark.parametrize(
    ("owner", "also"), [(0, ""), (OTHER_USER, ", or run: chmod u+wx {folder}")]
)
def test_unwritable_folder_is_named_with_its_option(tmp_path: Path, owner: int, also: str) -> None:
    """The error names the option, its value, and the folder; its owner can make it writable."""
    os.chown(tmp_path, owner, -1)
    tmp_path.chmod(0o555)

    ended = run_as_another_user(CHECK, str(tmp_path / "logs"), capabilities=MAY_READ)

    error, hint = ended.stderr.splitlines()[-2:]
    assert error == (
        f"clusterrun.errors.MachineError: --log-dir {tmp_path}/logs: log files can't be written"
        f" there: {tmp_path}: Permission denied"
    )
    assert hint == f"name another folder with --log-dir DIR{also.format(folder=tmp_path)}"


def test_trial_folder_has_an_unpredictable_name(tmp_path: Path) -> None:
    """Another user could create a predictable name first."""
    (tmp_path / f".clusterrun-{os.uname().nodename}-{os.getpid()}").touch()

    check_log_folder(Setting(str(tmp_path), "--log-dir"))

    assert len(list(tmp_path.iterdir())) == 1
