"""The job behind ``clusterrun doctor``, and hints about it."""

from tests.command_lines import command_line, flags_of
from tests.doctor.door import (
    WORKER,
    as_typed,
    checking_job,
)


def test_options_of_workers_are_replaced() -> None:
    """Those that say where the nodes are stay, by whatever name; spares are nodes to check."""
    line = command_line(
        {"nnodes": "14", "spares": "2", "nproc_per_node": "8", "tee": "3", "rdzv_id": "mine"}
    )

    job = checking_job(line, "logs", by_ssh=False)

    assert job.words == (WORKER, "logs")
    flags = flags_of(job.options)
    assert (flags["nnodes"], flags["nproc_per_node"]) == ("16", "1")
    assert "--rdzv-id mine" in job.line()
    assert flags.keys().isdisjoint({"tee", "spares"})


def test_a_timeout_that_is_given_stays() -> None:
    job = checking_job(command_line({"rdzv_timeout": "7"}), "", by_ssh=True)

    flags = flags_of(job.options)
    assert (flags["rdzv_timeout"], flags["ranks"]) == ("7", "0")


def test_hints_are_about_doctor() -> None:
    """They name what a user types, not the job behind it; others stay as they are."""
    line = command_line({"nnodes": "2"})
    typed = checking_job(line, "", by_ssh=False).line("--node-rank", "0")

    assert as_typed(f"on node 0:\n  {typed}\n  srun {typed}", line) == (
        "on node 0:\n  clusterrun doctor --nnodes 2 --node-rank 0\n"
        "  srun clusterrun doctor --nnodes 2 --node-rank 0"
    )
    assert as_typed("clusterrun --help", line) == "clusterrun --help"
