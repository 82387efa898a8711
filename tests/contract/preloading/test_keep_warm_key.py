"""What the key of a warm fork server consists of: what differs replaces the server, and is named."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.ends.test_memory import CGROUPS
from tests.contract.launched import Launcher
from tests.contract.preloading.warm_launches import REPLACED, WARM, importers, launch, outlived
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("variable", "variable FLAVOUR"),
        ("folder", "folder"),
        ("limit", "limit RLIMIT_NOFILE"),
        ("umask", "umask"),
        ("CPUs", "status Cpus_allowed_list"),
        ("priority", "priority"),
        ("ignored signal", "status SigIgn"),
        ("module", "file .*/slow_module.py"),
        ("preload", "preparation"),
        ("OOM score", "OOM score"),
    ],
)
def test_what_differs_replaces_it_and_is_named(warm: Launcher, change: str, named: str) -> None:
    first = launch(warm)

    around: dict[str, tuple[str, ...]] = {
        "folder": ("env", "-C", str(warm.folder / "runtime")),
        "limit": ("prlimit", "--nofile=900"),
        "umask": ("sh", "-c", 'umask 0; exec "$@"', "sh"),
        "CPUs": ("taskset", "-c", f"{min(os.sched_getaffinity(0))}"),
        "priority": ("nice", "-n", "3"),
        "ignored signal": ("sh", "-c", 'trap "" USR2; exec "$@"', "sh"),
        "OOM score": ("choom", "-n", "100", "--"),
    }
    environ = {"FLAVOUR": "sour"} if change == "variable" else {}
    options = ("--preload", "slow_module,json") if change == "preload" else ()
    if change == "module":
        (warm.folder / "slow_module.py").write_text("import os\nIMPORTED_BY = os.getpid() # new\n")
    program = str(warm.folder / "program.py") if change == "folder" else "program.py"
    second = launch(warm, *options, program=program, around=around.get(change, ()), environ=environ)

    assert importers(second) != importers(first)
    if change != "folder":
        # In another folder, it is another program.
        assert re.search(named, REPLACED.findall(second.err)[0]), second.err


def test_a_script_that_imports_something_else_first_replaces_it(warm: Launcher) -> None:
    (warm.folder / "program.py").write_text("import json, numpy\n")
    options = ("--keep-warm", "100", "--start-method", "fork", "-v")
    assert outlived(warm.command(*options, "program.py", workers=2)).code == 0
    (warm.folder / "program.py").write_text("import csv, numpy\n")

    second = outlived(warm.command(*options, "program.py", workers=2))

    assert REPLACED.findall(second.err) == ["what the script imports first"]


@pytest.mark.needs("root", "setpriv")
def test_another_group_replaces_it(warm: Launcher) -> None:
    first = launch(warm)

    second = launch(warm, around=("setpriv", "--regid=54321", "--keep-groups"))

    assert importers(second) != importers(first)
    assert REPLACED.findall(second.err) == ["user"]


@pytest.mark.needs("root", "setpriv")
def test_another_user_has_none(warm: Launcher) -> None:
    """One who may read and write all files: only the folder's owner tells the two apart."""
    first = launch(warm)
    rights = "+dac_override,+dac_read_search"
    user = ("--reuid=54321", "--clear-groups", f"--inh-caps={rights}", f"--ambient-caps={rights}")

    second = launch(warm, around=("setpriv", *user))
    left = warm.command("stop", "--warm", around=("setpriv", *user)).ended()

    assert importers(second) != importers(first)
    # In a folder of its own, outside the one that the variable names.
    assert "1 warm fork server" in left.out
    assert importers(launch(warm)) == importers(first)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Return a control group without limits; the test is skipped where none can be made."""
    one_hierarchy = CGROUPS / "pids"
    path = (one_hierarchy if one_hierarchy.exists() else CGROUPS) / f"tests-warm-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        if os.environ.get("CI") and os.geteuid() == 0:
            raise
        pytest.skip(f"no control group: {error}")

    yield path

    wait_until(lambda: not (path / "cgroup.procs").read_text(), f"no process is in {path}")
    path.rmdir()


def test_another_cgroup_replaces_it(cgroup: Path, warm: Launcher) -> None:
    first = launch(warm)
    inside = ("sh", "-c", f'echo $$ >{cgroup}/cgroup.procs; exec "$@"', "sh")

    second = launch(warm, around=inside)
    third = launch(warm, around=inside)

    assert importers(second) != importers(first)
    # The shell may also have set PWD.
    assert REPLACED.findall(second.err)[0].startswith("cgroup")
    assert importers(third) == importers(second)
    assert warm.command("stop", "--warm").ended().out == "ended 1 warm fork server\n"


def test_another_interpreter_at_the_same_path_replaces_it(warm: Launcher) -> None:
    """As after an upgrade of Python."""
    environment = warm.folder / "environment"
    make = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(environment)]
    subprocess.run(make, timeout=100, check=True)
    python = environment / "bin/python"
    binary = python.resolve()
    first = launch(warm, "--python", str(python))
    python.unlink()
    shutil.copy(binary, python)

    second = launch(warm, "--python", str(python))

    assert importers(second) != importers(first)
    assert REPLACED.findall(second.err) == ["interpreter"]


def test_another_interpreter_has_a_server_of_its_own(warm: Launcher) -> None:
    """The first one's stays for launches that name it."""
    environment = warm.folder / "environment"
    make = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
    subprocess.run(make, timeout=100, check=True)
    first = launch(warm)

    second = launch(warm, "--python", str(environment / "bin/python"))

    assert importers(second) != importers(first)
    assert WARM not in second.err
    assert importers(launch(warm)) == importers(first)
