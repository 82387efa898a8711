"""The job behind ``clusterrun doctor``, and hints about it."""

from pathlib import Path

import pytest
from clusterrun.clients.doctor.doctor import (
    CONNECTION_OPTIONS,
    PROGRAM,
    hint_for_doctor,
    node_check_job,
)
from clusterrun.job.options import OPTIONS

from tests.command_lines import command_line, flags_of


def test_worker_options_are_replaced_and_node_options_kept() -> None:
    """Spares count as nodes to check."""
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


def test_rdzv_timeout_from_variable_is_kept() -> None:
    job, _ = node_check_job(command_line({}), {"CLUSTERRUN_RDZV_TIMEOUT": "7"})

    assert flags_of(job.options)["rdzv_timeout"] == "7"


def test_options_come_from_variables_and_job_file_too(tmp_path: Path) -> None:
    """The strongest source counts; ``env`` is merged, and is not on the command line."""
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
def test_other_options_in_variables_are_dropped(prefix: str) -> None:
    """Otherwise a ``check`` that runs doctor would run itself in doctor's job."""
    environ = {f"{prefix}{name.upper()}": "1" for name in OPTIONS if name not in CONNECTION_OPTIONS}
    del environ[f"{prefix}CONFIG"]

    job, variables = node_check_job(command_line({}), environ)
    plain, _ = node_check_job(command_line({}), {})

    assert flags_of(job.options).keys() == flags_of(plain.options).keys()
    assert variables.keys() <= {"CLUSTERRUN_ENV"}


def test_check_option_is_dropped_from_every_source(tmp_path: Path) -> None:
    """Doctor may be the check of a job, but its own job has no check."""
    file = tmp_path / "job.yaml"
    file.write_text("script: train.py\ncheck: clusterrun doctor\n")
    typed = {"check": "clusterrun doctor"}
    variables = {"CLUSTERRUN_CHECK": "clusterrun doctor", "PET_CHECK": "clusterrun doctor"}

    for flags, environ in ((typed, {}), ({"config": str(file)}, {}), ({}, variables)):
        job, left = node_check_job(command_line(flags), environ)
        assert "clusterrun doctor" not in (*job.argv(), *left.values())


def test_hint_names_doctor_command() -> None:
    """A hint with the job's command line gets the user's; other hints are not changed."""
    line = command_line({"nnodes": "2"})
    job, _ = node_check_job(line, {})
    typed = job.quoted("--node-rank", "0")

    assert hint_for_doctor(f"on node 0:\n  {typed}\n  srun {typed}", line) == (
        "on node 0:\n  clusterrun doctor --nnodes 2 --node-rank 0\n"
        "  srun clusterrun doctor --nnodes 2 --node-rank 0"
    )
    assert hint_for_doctor("clusterrun --help", line) == "clusterrun --help"
