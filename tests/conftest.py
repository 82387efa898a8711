"""For the tests of all rooms: what a machine may lack, and a search for processes left behind."""

import functools
import os
import pty
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests import rounds
from tests.contract.launched import Launcher, variable_of
from tests.full_terminal import fill
from tests.machine_trees import dgx_a100, write_tree
from tests.needs import need
from tests.real_machines import CAPTURES, captured, tree_of, unpacked

MARK = "PYTEST_SESSION_OF"

HISTORIES = "tests/histories/"
"""Tests in which happenings are replayed to the policy."""

LONGEST = (
    "tests/contract/test_training.py",
    "tests/from_python/test_workers.py",
    "tests/contract/output/test_stacks.py",
    "tests/suspending/test_requests.py",
    "tests/contract/ends/test_late_exits.py",
    "tests/ssh/test_simulated_ssh.py",
    "tests/commands/test_doctor.py",
    "tests/commands/test_nccl.py",
    "tests/commands/test_slow.py",
    "tests/histories/test_all_orders.py",
    "tests/policy/test_partitions.py",
    "tests/policy/test_large_jobs.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that say how often what is random runs."""
    group = parser.getgroup("rounds")
    group.addoption(
        "--rounds", type=int, default=1, help="run what is random so many times, with other seeds"
    )
    group.addoption(
        "--first-round",
        type=int,
        default=0,
        help="number of the first of them; one run has round 0",
    )
    parser.addoption(
        "--workers-python",
        action="append",
        default=[],
        metavar="VERSION",
        help="run tests in tests/contract with it for workers; ``others``: each other one here; ``oldest-and-newest``: two of these",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Reset the signals that nohup or a shell's ``&`` ignores, for us and our processes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    rounds.CHOSEN.rounds = config.getoption("rounds")
    rounds.CHOSEN.first = config.getoption("first_round")
    _set_up_hypothesis()


def _set_up_hypothesis() -> None:
    usual = settings()
    is_one_round = (rounds.CHOSEN.rounds, rounds.CHOSEN.first) == (1, 0)
    settings.register_profile(
        "tests",
        max_examples=rounds.in_all_rounds(usual.max_examples),
        # With it, as where CI is set, each run would draw the same examples.
        derandomize=usual.derandomize and is_one_round,
        # On a busy machine, any example may take long.
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest tests first, so that no process is alone with one at the end.

    A test that draws the examples of all rounds gets the time of all rounds.
    """
    items[:] = _longest_first(items)
    usual = int(config.getini("timeout"))
    for item in items:
        item.user_properties.append(("kind", _kind_of(item)))
        # Hypothesis marks its tests.
        if item.get_closest_marker("hypothesis") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(rounds.in_all_rounds(usual)))


def _longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests so that each process begins with some that take long.

    pytest-xdist gives each process a part of the list, in its order.
    """
    longest = [item for item in items if item.nodeid.startswith(LONGEST)]
    others = [item for item in items if not item.nodeid.startswith(LONGEST)]
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = -(-len(others) // processes)
    parts = ((longest[n::processes], others[n * share : (n + 1) * share]) for n in range(processes))
    return [item for part in parts for tests in part for item in tests]


def _kind_of(item: pytest.Item) -> str:
    """Return the kind of a test: scripts/run_checks.py knows how many there must be of each."""
    if item.get_closest_marker("hosts"):
        return "hosts"
    if item.get_closest_marker("hypothesis"):
        return "properties"
    if item.nodeid.startswith(HISTORIES):
        return "histories"
    return "contract" if item.nodeid.startswith("tests/contract/") else "rest"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``needs("root", "tmux")`` where one of these is missing."""
    need(*(name for marker in item.iter_markers("needs") for name in marker.args))


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail if a process that a test started outlives the session, and kill that process."""
    mark = f"{os.getpid()}-{time.time_ns()}"
    os.environ[MARK] = mark

    yield

    _, left = psutil.wait_procs(_started_under(mark), timeout=5)
    still_running = [f"pid {process.pid}: {_describe(process)}" for process in left]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert not still_running, "\n".join(["left behind by tests:", *still_running])


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have no launch remember what one of an earlier session found in a folder of the same name."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def real_machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from the name of a real machine to its capture or the root of its tree.

    They stay as they are. A tree has hundreds of files: each is written once in a session.
    """

    def write(name: str) -> Path:
        if (CAPTURES / name).exists():
            return CAPTURES / name
        folder = tmp_path_factory.mktemp(name.partition(".")[0])
        return unpacked(name, folder) if name in captured() else tree_of(name, folder)

    return functools.cache(write)


@pytest.fixture(scope="session")
def eight_gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of a DGX A100's tree, which stays as it is."""
    return write_tree(tmp_path_factory.mktemp("eight"), dgx_a100())


@pytest.fixture
def clusterrun(tmp_path: Path) -> Iterator[Launcher]:
    """Return a launcher whose jobs are all gone after the test."""
    launcher = Launcher(tmp_path)

    yield launcher

    launcher.close()


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    """Return the variable that gives the jobs of the test a new folder for sockets."""
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def no_child_left() -> Iterator[None]:
    """Fail if the test leaves a child, dead or alive."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


@pytest.fixture
def full_terminal() -> Iterator[str]:
    """Return the path of a terminal that no process reads, as after Ctrl-S, and that is full."""
    master, slave = pty.openpty()
    fill(os.ttyname(slave))

    yield os.ttyname(slave)

    os.close(slave)
    os.close(master)


def _started_under(mark: str) -> list[psutil.Process]:
    # By environment, not by parent: tested processes leave their parents on purpose.
    others = (process for process in psutil.process_iter() if process.pid != os.getpid())
    return [process for process in others if variable_of(process, MARK) == mark]


def _describe(process: psutil.Process) -> str:
    try:
        return f"{' '.join(process.cmdline())}, of {variable_of(process, 'PYTEST_CURRENT_TEST')}"
    except psutil.Error:
        return "gone meanwhile"
