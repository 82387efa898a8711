"""The job behind ``clusterrun doctor``, and hints about it."""

from pathlib import Path

import pytest
from clusterrun.clients.doctor.doctor import KEPT, PROGRAM, as_typed, node_check_job
from clusterrun.job.options import OPTIONS

from tests.command_lines import command_line, flags_of


def test_options_of_workers_are_replaced() -> None:
    """Those that say where the nodes are stay, by whatever name; spares are nodes to check."""
    line = command_line(
        {
            "nnodes": "14",
            "spares": "2",
            "nproc_per_node": "8",
            "tee": "3",
            "rdzv_id": "mine",
            "log_dir": "logs",
        }
    )

    job, _ = node_check_job(line, {})

    assert job.words == (PROGRAM, "logs")
    flags = flags_of(job.options)
    assert (flags["nnodes"], flags["nproc_per_node"]) == ("16", "1")
    assert "--rdzv-id mine" in job.quoted()
    assert flags.keys().isdisjoint({"tee", "spares"})


def test_a_timeout_that_is_given_stays() -> None:
    job, _ = node_check_job(command_line({}), {"CLUSTERRUN_RDZV_TIMEOUT": "7"})

    assert flags_of(job.options)["rdzv_timeout"] == "7"


def test_variables_and_a_job_file_add_to_the_command_line(tmp_path: Path) -> None:
    """The strongest source counts; ``env`` adds up, and stays out of the command line."""
    file = tmp_path / "job.yaml"
    file.write_text("script: train.py\nnnodes: 4\nmaster_addr: n0\nenv: {A: '1', B: '1'}\n")
    environ = {"CLUSTERRUN_NNODES": "3", "CLUSTERRUN_ENV": "B=2", "PET_NODE_RANK": "1"}

    job, variables = node_check_job(
        command_line({"config": str(file), "master_port": "1"}), environ
    )

    flags = flags_of(job.options)
    assert (flags["nnodes"], flags["master_addr"], flags["node_rank"]) == ("3", "n0", "1")
    assert variables == {"CLUSTERRUN_ENV": "A=1\nB=1\nB=2"}
    assert flags.keys().isdisjoint({"env", "config", "script"})


@pytest.mark.parametrize("prefix", ["CLUSTERRUN_", "PET_"])
def test_no_other_option_reaches_the_job(prefix: str) -> None:
    """Not from variables either: a check that runs doctor would run itself in doctor's job."""
    environ = {f"{prefix}{name.upper()}": "1" for name in OPTIONS if name not in KEPT}
    del environ[f"{prefix}CONFIG"]

    job, variables = node_check_job(command_line({}), environ)
    plain, _ = node_check_job(command_line({}), {})

    assert flags_of(job.options).keys() == flags_of(plain.options).keys()
    assert variables.keys() <= {"CLUSTERRUN_ENV"}


def test_a_check_is_ignored_from_every_source(tmp_path: Path) -> None:
    """Doctor may be the check of a job; its own job has none."""
    file = tmp_path / "job.yaml"
    file.write_text("script: train.py\ncheck: clusterrun doctor\n")
    typed = {"check": "clusterrun doctor"}
    variables = {"CLUSTERRUN_CHECK": "clusterrun doctor", "PET_CHECK": "clusterrun doctor"}

    for flags, environ in ((typed, {}), ({"config": str(file)}, {}), ({}, variables)):
        job, left = node_check_job(command_line(flags), environ)
        assert "clusterrun doctor" not in (*job.argv(), *left.values())


def test_hints_are_about_doctor() -> None:
    """They name what a user types, not the job behind it; others stay as they are."""
    line = command_line({"nnodes": "2"})
    job, _ = node_check_job(line, {})
    typed = job.quoted("--node-rank", "0")

    assert as_typed(f"on node 0:\n  {typed}\n  srun {typed}", line) == (
        "on node 0:\n  clusterrun doctor --nnodes 2 --node-rank 0\n"
        "  srun clusterrun doctor --nnodes 2 --node-rank 0"
    )
    assert as_typed("clusterrun --help", line) == "clusterrun --help"
