"""What every room's tests share: needs that a machine may lack, and a house left clean."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

MARK = "PYTEST_SESSION_OF"


def pytest_configure() -> None:
    """Undo what nohup, or a shell's ``&``, has had ignored for us and all that the tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a test marked ``needs("root", "tmux")`` where one of these is missing.

    ``root`` is the user; every other name is a command on PATH. Where CI is set, such a machine is
    no place to run the tests on, and the test fails.
    """
    wanted = [name for marker in item.iter_markers("needs") for name in marker.args]
    missing = [name for name in wanted if not _is_there(name)]
    if missing and os.environ.get("CI"):
        pytest.fail(f"needs {', '.join(missing)}, which CI must have", pytrace=False)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def _is_there(name: str) -> bool:
    return os.geteuid() == 0 if name == "root" else shutil.which(name) is not None


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail if a process that some test started outlives the session, and end that process."""
    mark = f"{os.getpid()}-{time.time_ns()}"
    os.environ[MARK] = mark

    yield

    _, left = psutil.wait_procs(_started_under(mark), timeout=5)
    told = [f"pid {process.pid}: {_describe(process)}" for process in left]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert not told, "\n".join(["left behind by tests:", *told])


def _started_under(mark: str) -> list[psutil.Process]:
    # By environment, not by parent: what the tests are about leaves its parent on purpose.
    others = (process for process in psutil.process_iter() if process.pid != os.getpid())
    return [process for process in others if _variable(process, MARK) == mark]


def _describe(process: psutil.Process) -> str:
    try:
        return f"{' '.join(process.cmdline())}, of {_variable(process, 'PYTEST_CURRENT_TEST')}"
    except psutil.Error:
        return "gone meanwhile"


def _variable(process: psutil.Process, name: str) -> str:
    try:
        return process.environ().get(name, "")
    except psutil.Error:
        return ""
