"""The scripts of configs/schedulers, with simulated LSF, PBS and Flux."""

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from tests.hosts.batch_systems import run_script
from tests.hosts.failing_ranks import PRINT_OR_FAIL, RANKS, two_by_two
from tests.hosts.host import Host


@pytest.mark.parametrize("scheduler", ["lsf", "pbs", "flux"])
@pytest.mark.parametrize("fails", ["", "3"])
def test_scheduler_script_runs_on_all_nodes(
    scheduler: str, fails: str, hosts: Sequence[Host], tmp_path: Path
) -> None:
    """There is a worker for each GPU. A failing rank's exit code is the script's."""
    (tmp_path / "ranks.py").write_text(dedent(PRINT_OR_FAIL))
    words = f"--nproc-per-node 2 --env FAILS={fails} ranks.py"

    done = run_script(scheduler, hosts[:2], tmp_path, words)

    assert done.code == (9 if fails else 0), done.err
    printed, expected = sorted(re.findall(RANKS, done.out)), two_by_two()
    # Ranks that have not begun when another one fails print nothing.
    assert printed == expected or (fails and {expected[3]} <= set(printed) <= set(expected))
