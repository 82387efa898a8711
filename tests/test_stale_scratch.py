"""What killed jobs have left in TMPDIR is removed, and nothing else."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterrun.scratch import new_scratch_paths, remove_leftovers
from clusterrun.workers.fork_server.kernel import stat_fields

from tests.imports import imports


def name_for(pid: int, started: str) -> str:
    """Return the name of the folder of a process of this host and its namespaces."""
    own, _, random = new_scratch_paths({})[0].name.rpartition("-")
    return f"{own.removesuffix(own_id())}{pid}-{started}-{random}"


def own_id() -> str:
    """Return how the part of the name of our own folder ends that everybody knows."""
    return f"{os.getpid()}-{stat_fields(os.getpid())[19]}"


@pytest.fixture
def dead() -> str:
    with subprocess.Popen(["true"]) as ended:
        started = stat_fields(ended.pid)[19]
    return name_for(ended.pid, started)


@pytest.fixture
def living() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def test_the_usual_folder() -> None:
    """It is below TMPDIR, or below /tmp if that is not set or empty."""
    folders = [new_scratch_paths(environ) for environ in ({"TMPDIR": "/x"}, {"TMPDIR": ""}, {})]

    assert [each.parent for each, _ in folders] == [Path("/x"), Path("/tmp"), Path("/tmp")]
    names = [each.name for pair in folders for each in pair]
    assert {name.rpartition("-")[0].removesuffix(own_id()) for name in names} == {
        name_for(0, "0").partition("0-0-")[0]
    }
    assert names[0].startswith(f"clusterrun-{os.uname().nodename}-")


def test_no_name_can_be_foreseen() -> None:
    """Another user who makes the folder first takes it away from the job."""
    names = {each.name for _ in range(8) for each in new_scratch_paths({})}

    assert len(names) == 16


def test_what_belongs_to_no_living_process_is_removed(tmp_path: Path, dead: str) -> None:
    """Earlier versions had nothing random in the name."""
    (tmp_path / dead.rpartition("-")[0]).mkdir()
    (tmp_path / dead / "attempt-0" / "rank-0").mkdir(parents=True)
    (tmp_path / dead / "attempt-0" / "rank-0" / "error.json").write_text("{}")

    remove_leftovers(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_process_that_has_the_number_of_another_is_not_it(tmp_path: Path, living: int) -> None:
    """Process ids are used again; this process started later than the folder's name says."""
    (tmp_path / name_for(living, "1")).mkdir()
    left = {name_for(living, stat_fields(living)[19]), new_scratch_paths({})[0].name}
    for name in left:
        (tmp_path / name).mkdir()

    remove_leftovers(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == left


def test_what_others_may_use_stays(tmp_path: Path, dead: str) -> None:
    """The processes of other hosts and containers that share TMPDIR can't be seen from here."""
    host = os.uname().nodename
    *parts, namespace, time, pid, started, _ = dead.removeprefix(f"clusterrun-{host}-").split("-")
    boot = "-".join(parts)
    others = {
        f"clusterrun-other-{boot}-{namespace}-{time}-{pid}-{started}",
        f"clusterrun-{host}-{boot[::-1]}-{namespace}-{time}-{pid}-{started}",
        f"clusterrun-{host}-{boot}-{namespace}1-{time}-{pid}-{started}",
        f"clusterrun-{host}-{boot}-{namespace}-{time}1-{pid}-{started}",
        f"clusterrun-{host}-{boot}-{namespace}-{time}-{pid}-",
        f"clusterrun-{host}-{boot}-{namespace}-{time}-{pid}-{started}-x",
        f"clusterrun-{host}-{boot}-{namespace}-{time}-{2**63}-{started}",
        f"clusterrun-20261122-104542-{pid}-{pid}",
        "clusterrun-logs",
        "somebody-s-own",
    }
    for name in others:
        (tmp_path / name).mkdir()
    target = tmp_path / "somebody-s-own" / "data"
    target.touch()
    (tmp_path / dead).symlink_to(target.parent)

    remove_leftovers(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {*others, dead}
    assert target.exists()


@pytest.mark.needs("root")
def test_what_another_user_has_left_stays(tmp_path: Path, dead: str) -> None:
    """That user's next launch removes it."""
    (tmp_path / dead).mkdir()
    os.chown(tmp_path / dead, 54321, 54321)

    remove_leftovers(tmp_path)

    assert (tmp_path / dead).exists()


def test_a_missing_folder_is_ignored(tmp_path: Path) -> None:
    """TMPDIR may be wrong."""
    remove_leftovers(tmp_path / "absent")


@pytest.mark.needs("root", "unshare")
def test_in_another_pid_namespace_nothing_is_removed(tmp_path: Path, dead: str) -> None:
    """A living process might not be seen there, neither in its own /proc nor in ours."""
    (tmp_path / dead).mkdir()
    code = (
        "from pathlib import Path\n"
        f"{imports(remove_leftovers)}remove_leftovers(Path({str(tmp_path)!r}))"
    )

    for options in (["--mount-proc"], []):
        command = ["unshare", "--pid", "--fork", *options, sys.executable, "-c", code]
        subprocess.run(command, timeout=60, check=True)

    assert (tmp_path / dead).exists()
