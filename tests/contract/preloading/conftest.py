"""Fixtures of the tests of preloading."""

from collections.abc import Iterator

import pytest

from tests.contract.launched import Launcher

PROGRAM = """
import slow_module
import os, sys
print("imported by", slow_module.IMPORTED_BY, sys.argv[1:], os.environ["RANK"], flush=True)
"""


@pytest.fixture
def warm(clusterrun: Launcher, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """Return a launcher whose warm fork servers end with the test."""
    runtime = clusterrun.folder / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    (clusterrun.folder / "slow_module.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    monkeypatch.setenv("PYTHONPATH", str(clusterrun.folder))
    # One mark for all launches: each inherits the same variables.
    clusterrun.mark = f"warm-{clusterrun.folder}"
    (clusterrun.folder / "program.py").write_text(PROGRAM)

    yield clusterrun

    clusterrun.command("stop", "--warm").ended()
