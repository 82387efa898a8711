"""The scripts of configs/schedulers, run on the nodes of LSF, PBS and Flux as far as they notice."""

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from tests.hosts.batch_systems import run_script
from tests.hosts.host import Host

RANKS = """
    import os, time
    from pathlib import Path
    where = f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']} on {os.uname().nodename}"
    print(f"rank {where}\\n", end="", flush=True)
    Path(f"rank-{os.environ['RANK']}-has-printed").touch()
    if os.environ["RANK"] == os.environ.get("FAILS"):
        # Its failure ends the others, which may not have printed yet.
        while len(list(Path().glob("rank-*-has-printed"))) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.01)
        raise SystemExit(9)
"""


@pytest.mark.parametrize("scheduler", ["lsf", "pbs", "flux"])
@pytest.mark.parametrize("fails", ["", "3"])
def test_scheduler_script_runs_on_all_nodes(
    scheduler: str, fails: str, hosts: Sequence[Host], tmp_path: Path
) -> None:
    """There is a worker for each GPU. A failing rank's exit code is the script's."""
    (tmp_path / "ranks.py").write_text(dedent(RANKS))
    words = f"--nproc-per-node 2 --env FAILS={fails} ranks.py"

    done = run_script(scheduler, hosts[:2], tmp_path, words)

    assert done.code == (9 if fails else 0), done.err
    where = [f"rank {rank} of 4 on n{rank // 2}" for rank in range(4)]
    told = sorted(re.findall(r"rank \d of \d on n\d", done.out))
    # Ranks that have not begun when another one fails print nothing.
    assert told == where or (fails and {where[3]} <= set(told) <= set(where))
