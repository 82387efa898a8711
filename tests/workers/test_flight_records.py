"""Files of torch's flight recorder."""

import os
import time
from pathlib import Path

import pytest
from clusterrun.bounds import GlobalRank
from clusterrun.workers.flight_records import flight_records_line

STARTED = time.time() - 60

NAMED = "torch's flight recorder (torchfrtrace reads it): "


@pytest.mark.parametrize("variable", ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
def test_files_at_a_prefix_from_a_variable(tmp_path: Path, variable: str) -> None:
    """Those of this node's ranks, but not of an earlier job."""
    for rank in range(4):
        (tmp_path / f"trace_{rank}").touch()
    os.utime(tmp_path / "trace_1", (STARTED - 100, STARTED - 100))
    environ = {variable: f"{tmp_path}/trace_", "HOME": str(tmp_path)}

    named = flight_records_line(environ, map(GlobalRank, range(3)), STARTED)

    assert named == f"{NAMED}{tmp_path}/trace_0, {tmp_path}/trace_2"


@pytest.mark.parametrize("name", ["comm_lib_trace_rank_", "nccl_trace_rank_"])
def test_files_at_the_default_prefixes(tmp_path: Path, name: str) -> None:
    folder = tmp_path / ".cache/torch"
    folder.mkdir(parents=True)
    (folder / f"{name}3").touch()

    named = flight_records_line({"HOME": str(tmp_path)}, [GlobalRank(3)], STARTED)

    assert named == f"{NAMED}{folder}/{name}3"


def test_files_of_other_users_and_links_are_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torchfrtrace unpickles the files."""
    (tmp_path / "trace_0").touch()
    (tmp_path / "trace_1").symlink_to(tmp_path / "trace_0")
    environ = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_"}
    ranks = [GlobalRank(0), GlobalRank(1)]

    assert flight_records_line(environ, ranks, STARTED) == f"{NAMED}{tmp_path}/trace_0"
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert not flight_records_line(environ, ranks, STARTED)
