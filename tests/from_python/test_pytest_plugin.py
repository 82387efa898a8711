"""``@pytest.mark.ranks``: in a pytest of its own, as a user's suite has it."""

import re
import sys
from pathlib import Path

import pytest

from tests.contract.launched import Ended, Launcher

CONFTEST = """
import pytest

@pytest.fixture
def factor():
    return 3

@pytest.fixture
def unpicklable():
    import threading
    return threading.Lock()
"""

SUITE = """
import os
import pytest

SCALE = 10

class Point:
    def __init__(self, x):
        self.x = x

def total(value):
    import torch, torch.distributed as dist
    tensor = torch.tensor(float(value))
    dist.all_reduce(tensor)
    return tensor.item()

@pytest.mark.ranks(2)
def test_sum(factor):
    print("printed by", os.environ["RANK"])
    assert total(SCALE * factor) == 60

@pytest.mark.ranks(2)
@pytest.mark.parametrize("value", [1, 2])
def test_parameters(value):
    assert total(value) == 2 * value

class TestOfAClass:
    @pytest.mark.ranks(2, backend=None)
    def test_method(self):
        assert os.environ["WORLD_SIZE"] == "2"
        assert isinstance(Point(1), Point)

@pytest.mark.ranks(2, backend=None)
def test_environment(monkeypatch_free=None):
    assert os.environ["SET_BY_A_FIXTURE"] == "yes"

@pytest.fixture(autouse=True)
def variable(monkeypatch):
    monkeypatch.setenv("SET_BY_A_FIXTURE", "yes")

@pytest.mark.ranks(2, backend=None)
def test_fails():
    rank = int(os.environ["RANK"])
    assert rank + 5 == 5

@pytest.mark.ranks(2, backend=None)
def test_skips():
    pytest.skip("no reason")

@pytest.mark.ranks(2, backend=None)
def test_lock(unpicklable):
    pass

def test_without_ranks():
    assert "RANK" not in os.environ
"""


@pytest.fixture
def suite(caller: Launcher, tmp_path: Path) -> Launcher:
    """Return a folder with a test-suite."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    # Hypothesis would take half of each run's time.
    options = "-p no:cacheprovider -p no:hypothesispytest"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {options}\n")
    return caller


def run(suite: Launcher, *words: str) -> Ended:
    return suite.command("-m", "pytest", "-q", *words).ended(120)


def test_a_suite(suite: Launcher) -> None:
    """Each outcome and each message of a suite that has all of them."""
    ended = run(suite, "-rA")

    assert "2 failed, 6 passed, 1 skipped" in ended.out, ended.out + ended.err
    assert "assert (1 + 5) == 5" in ended.out
    assert "rank 1 on" in ended.out
    assert "argument unpicklable (_thread.lock) can't be pickled" in ended.out
    assert "[rank 0] printed by 0" in ended.out
    assert "no reason" in ended.out


NOT_ON_RANKS = """
import unittest
import pytest

@pytest.mark.ranks(2)
async def test_async():
    assert False

class TestOfUnittest(unittest.TestCase):
    @pytest.mark.ranks(2)
    def test_method(self):
        pass

@pytest.mark.ranks(1, backend=None)
def test_expected():
    pytest.xfail("known")
"""


def test_what_can_not_run_on_ranks_does_not_pass(suite: Launcher, tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(NOT_ON_RANKS)

    ended = run(suite)

    assert "1 xfailed, 2 errors" in ended.out, ended.out
    assert "@pytest.mark.ranks is not for async functions" in ended.out
    assert "not for unittest.TestCase" in ended.out
    assert "During handling" not in ended.out


EXPECTED_FAILURES = """
import os
import pytest

pytestmark = pytest.mark.ranks(2, backend=None, preload="json")

class OwnError(Exception):
    pass

class Unpicklable(Exception):
    def __init__(self, code, *, why):
        super().__init__(code)

@pytest.mark.xfail(raises=AssertionError)
def test_expected_of_one_rank():
    assert os.environ["RANK"] == "0"

@pytest.mark.xfail(raises=OwnError)
def test_expected_of_this_module():
    raise OwnError

@pytest.mark.xfail(raises=AssertionError)
def test_another_one():
    raise ValueError("not expected")

@pytest.mark.xfail(raises=Unpicklable)
def test_unpicklable():
    raise Unpicklable(3, why="so")

@pytest.mark.xfail
def test_any():
    raise Unpicklable(3, why="so")
"""


def test_expected_failures(suite: Launcher, tmp_path: Path) -> None:
    """``raises`` is compared with the rank's exception; the report stays the job's."""
    (tmp_path / "test_suite.py").write_text(EXPECTED_FAILURES)

    ended = run(suite, "-rxf")

    assert "2 failed, 3 xfailed" in ended.out, ended.out
    assert "XFAIL test_suite.py::test_expected_of_one_rank" in ended.out
    assert "XFAIL test_suite.py::test_expected_of_this_module" in ended.out
    assert re.search(r"_ test_another_one _+\nclusterrun: rank \d on .*ValueError", ended.out)
    assert "direct cause" not in ended.out


OPTIONS = """
import os
import time
import pytest

pytestmark = pytest.mark.ranks(2, backend=None, preload="json")

@pytest.fixture(scope="module", params=["x", "y"])
def letter(request):
    return {"letter": request.param}

@pytest.mark.parametrize("number", [1, 2])
def test_fine(letter, number, tmp_path):
    assert letter["letter"] in "xy"
    (tmp_path / os.environ["RANK"]).touch()
    os.system("echo printed by a child of " + os.environ["RANK"])

@pytest.mark.timeout(1)
def test_slow():
    time.sleep(100)

def test_fails():
    assert os.environ["RANK"] == "0"

def test_after():
    pass
"""


@pytest.fixture
def with_options(suite: Launcher, tmp_path: Path) -> Launcher:
    """Return a folder with a suite of which two tests fail, the first by its time limit."""
    (tmp_path / "test_suite.py").write_text(OPTIONS)
    return suite


@pytest.mark.long
def test_a_time_limit_ends_the_ranks_of_its_test_alone(with_options: Launcher) -> None:
    ended = run(with_options)

    assert "2 failed, 5 passed" in ended.out, ended.out
    assert "Timeout (>1.0s) from pytest-timeout. The ranks were ended.\n" in ended.out
    assert "python/job.py" not in ended.out


@pytest.mark.long
def test_a_time_limit_by_a_thread_leaves_no_rank(with_options: Launcher) -> None:
    """It ends pytest by ``os._exit``."""
    words = ("-m", "pytest", "-q", "--timeout-method=thread", "-k", "slow or after")
    job = with_options.command(*words)

    ended = job.ended(120)

    assert ended.code != 0
    assert "+ Timeout +" in ended.out + ended.err
    assert "passed" not in ended.out
    assert job.left() == []


@pytest.mark.long
def test_stop_at_the_first_failure_and_choice_by_name(with_options: Launcher) -> None:
    stopped = run(with_options, "-x", "-k", "not slow")
    chosen = run(with_options, "-k", "fine and x")

    assert "1 failed, 4 passed, 1 deselected" in stopped.out, stopped.out
    assert "2 passed, 5 deselected" in chosen.out, chosen.out


@pytest.mark.long
@pytest.mark.parametrize("way", ["fd", "sys"])
def test_what_ranks_print_is_captured(with_options: Launcher, way: str) -> None:
    """A test that passed shows it only if it is asked for."""
    quiet = run(with_options, f"--capture={way}", "-k", "fine and x")
    shown = run(with_options, f"--capture={way}", "-k", "fine and x and 1", "-rP")

    assert "printed by" not in quiet.out + quiet.err
    assert "[rank 1] printed by a child of 1" in shown.out


@pytest.mark.long
def test_two_processes_of_xdist(with_options: Launcher) -> None:
    ended = run(with_options, "-n", "2", "-rf")

    assert "2 failed, 5 passed" in ended.out, ended.out
    assert "AssertionError: assert '1' == '0'" in ended.out
    assert "Timeout (>1.0s)" in ended.out


@pytest.mark.long
def test_xdist_stops_at_the_first_failure(with_options: Launcher) -> None:
    ended = run(with_options, "-n", "2", "-x", "-k", "fails or after")

    assert "1 failed" in ended.out, ended.out
    assert "stopping after 1 failures" in ended.out


def test_a_mark_without_a_number(suite: Launcher, tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(
        "import pytest\n@pytest.mark.ranks\ndef test_it(): pass\n"
    )

    assert "@pytest.mark.ranks takes the number of ranks" in run(suite).out


def test_the_plugin_imports_nothing_that_takes_time(suite: Launcher, tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(
        "import sys\ndef test_it(): assert not {'msgspec', 'cloudpickle', 'torch'} & {*sys.modules}\n"
    )

    assert "1 passed" in run(suite).out


def test_the_entry_point_is_there() -> None:
    from importlib.metadata import entry_points

    [found] = entry_points(group="pytest11", name="clusterrun")

    assert found.load() is sys.modules["clusterrun.clients.python.pytest_plugin"]
