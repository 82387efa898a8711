"""The files of torch's flight recorder."""

import os
import time
from pathlib import Path

import pytest
from clusterrun.domain.outcome import Fate, Killed
from clusterrun.domain.ranks import GlobalRank, LocalRank
from clusterrun.run.flight_records import flight_records

NOW = time.time()


def fate(rank: int) -> Fate:
    """Return the end of a worker that has run for a minute."""
    ending = Killed(6)
    ranks = GlobalRank(rank), LocalRank(rank)
    return Fate(*ranks, "n0", 1, ending, False, NOW, 60.0, "", "", "", "")


@pytest.mark.parametrize("variable", ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
def test_where_a_variable_says(tmp_path: Path, variable: str) -> None:
    """Those of this node's ranks, and not what an earlier job has left."""
    (tmp_path / "trace_0").touch()
    (tmp_path / "trace_2").touch()
    old = tmp_path / "trace_1"
    old.touch()
    os.utime(old, (NOW - 100, NOW - 100))
    environ = {variable: f"{tmp_path}/trace_", "HOME": str(tmp_path)}

    assert flight_records(environ, [fate(0), fate(1)]) == (tmp_path / "trace_0",)


@pytest.mark.parametrize("name", ["comm_lib_trace_rank_", "nccl_trace_rank_"])
def test_where_torch_writes_by_itself(tmp_path: Path, name: str) -> None:
    folder = tmp_path / ".cache/torch"
    folder.mkdir(parents=True)
    (folder / f"{name}3").touch()

    assert flight_records({"HOME": str(tmp_path)}, [fate(3)]) == (folder / f"{name}3",)


def test_none() -> None:
    assert flight_records({"HOME": "/nowhere"}, []) == ()
