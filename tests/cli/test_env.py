"""``clusterrun env``: what a bug report needs."""

import json
from collections.abc import Mapping
from pathlib import Path

from clusterrun.machine.tree import ROOT, Tree

from tests.typed import typed

VARIABLES = {
    "CLUSTERRUN_TOKEN": "hush",
    "NCCL_DEBUG": "INFO",
    "SECRET_OF_MINE": "hush",
    "SLURM_JOB_ID": "17",
}
BROKEN = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "x", "SLURM_NODEID": "y"}


def printed_by(environ: Mapping[str, str], *words: str) -> str:
    done = typed(["env", *words], environ, Path())
    assert (done.code, done.err) == (0, "")
    return done.out


def test_env_report_has_all_sections() -> None:
    """Versions, the machine, variables; no secret."""
    printed = printed_by(VARIABLES)

    for wanted in ("clusterrun", "kernel", "/dev/shm", "NUMA nodes", "NCCL_DEBUG", "open files"):
        assert wanted in printed
    assert "hush" not in printed
    assert "SECRET_OF_MINE" not in printed


def test_env_report_as_json() -> None:
    """The same as JSON, in which a value is what it was set to."""
    found = json.loads(printed_by(VARIABLES, "--json"))

    assert list(found) == ["python", "packages", "host", "machine", "variables"]
    assert found["variables"]["NCCL_DEBUG"] == "INFO"
    assert found["packages"]["clusterrun"]
    assert (Path(found["python"]["clusterrun is in"]) / "cli/env.py").is_file()
    assert int(found["machine"]["cores"]) > 0
    driver = Tree(ROOT).text("proc/driver/nvidia/version").partition("\n")[0]
    assert found["machine"]["NVIDIA driver"] == (driver or "none")


def test_json_is_ascii() -> None:
    """A variable may have bytes that are not UTF-8, and standard output any encoding."""
    value = "caf\u00e9 \udce9"

    printed = printed_by({"NCCL_DEBUG": value}, "--json")

    assert printed.isascii()
    assert json.loads(printed)["variables"]["NCCL_DEBUG"] == value


def test_a_contradictory_cluster_is_part_of_the_report() -> None:
    """That is what the report is about then."""
    assert "contradictory: SLURM_" in printed_by(BROKEN)
