"""accelerate's own tests, with ``clusterrun.spawn`` in place of ``torch.multiprocessing``'s.

They start their ranks by ``accelerate.debug_launcher``, which calls
``torch.multiprocessing.start_processes``: the function behind ``torch.multiprocessing.spawn``, with the
same arguments. They are in accelerate's source distribution only, which pip downloads.
"""

import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.contract.launched import Launcher
from tests.hosts.test_frameworks import ON_CPUS

SECONDS_TO_DOWNLOAD = 300
SECONDS_TO_RUN = 200.0

PLUGIN = """
import os
from pathlib import Path

import clusterrun
import torch.multiprocessing

calls = []

def spawn(*args, **kwargs):
    calls.append(args)
    clusterrun.spawn(*args, **kwargs)
    # The last rank to exit removes its FileStore's file; those that debug_launcher forks end by
    # os._exit, which does not. With start_method="spawn", torch's own ranks remove it, too.
    Path(os.environ["ACCELERATE_DEBUG_RDV_FILE"]).touch()

torch.multiprocessing.spawn = torch.multiprocessing.start_processes = spawn

def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"{len(calls)} calls of clusterrun.spawn")
"""


@pytest.fixture(scope="module")
def tests_of_accelerate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the tests of the installed accelerate."""
    folder = tmp_path_factory.mktemp("accelerate")
    name = f"accelerate=={version('accelerate')}"
    options = ("--quiet", "--no-deps", "--no-binary", "accelerate", "--dest", str(folder))
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, name],
        check=True,
        timeout=SECONDS_TO_DOWNLOAD,
    )
    [archive] = folder.glob("accelerate-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    [tests] = folder.glob("accelerate-*/tests")
    return tests


# test_grad_sync's test of one process is excluded, because it expects that LOCAL_RANK is not set.
@pytest.mark.long
@pytest.mark.timeout(SECONDS_TO_DOWNLOAD + SECONDS_TO_RUN)
@pytest.mark.parametrize(
    ("file", "choice", "count"),
    [
        ("test_cpu.py", "test_cpu or test_ops", 2),
        ("test_grad_sync.py", "test_gradient_sync_cpu_multi", 1),
        ("test_scheduler.py", "test_lambda_scheduler", 4),
        ("test_scheduler.py", "test_one_cycle_scheduler", 4),
    ],
)
def test_accelerate_tests_pass_with_spawn(
    caller: Launcher, tests_of_accelerate: Path, file: str, choice: str, count: int
) -> None:
    (caller.folder / "with_clusterrun.py").write_text(PLUGIN)
    words = ("-p", "with_clusterrun", "-q", "-k", choice, str(tests_of_accelerate / file))
    ended = caller.command(
        "-m", "pytest", *words, environ={**ON_CPUS, "PYTHONPATH": str(caller.folder)}
    ).ended(SECONDS_TO_RUN)

    assert ended.code == 0, ended.out + ended.err
    assert f"{count} passed" in ended.out
    calls = re.search(r"(\d+) calls of clusterrun.spawn", ended.out)
    assert calls
    assert int(calls[1]) >= count
