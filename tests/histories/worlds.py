"""Helpers for histories with restarts: ranks end as ordered, and others start."""

import signal

from tests.histories.job_history import Job


def stops(job: Job, *ranks: int) -> list[str]:
    """Let ranks end as ordered; return what followed of it but for their cleaning."""
    job.settles().new_lines()
    seen = job.dies(*ranks, by=signal.SIGTERM).settles().new_lines()
    return [line for line in seen if "kills what its ranks have left" not in line]


def starts(*nodes: int, attempt: int = 1) -> list[str]:
    """Return how an attempt starts on these nodes, by rank."""
    ranked = sorted((node, rank) for rank, node in enumerate(nodes))
    return [f"node {node} starts rank {rank}, attempt {attempt}" for node, rank in ranked]


def numbers(ranks: str) -> set[int]:
    """Return 0, 2 and 3 of "0,2-3"."""
    runs = [run.partition("-") for run in ranks.split(",") if run]
    return {rank for low, _, high in runs for rank in range(int(low), int(high or low) + 1)}


def begun(job: Job) -> list[str]:
    """Return which ranks have started since the last call."""
    return [line for line in job.settles().new_lines() if "starts" in line]


def of_node(node: int, lines: list[str]) -> list[str]:
    """Return the lines about one node."""
    return [line for line in lines if line.startswith(f"node {node} ")]


def ends(job: Job) -> set[str]:
    """Return how the nodes that have ended since then say that the job has."""
    return {line[7:] for line in job.new_lines() if " ends with " in line}


def signals(job: Job) -> list[str]:
    return [line for line in job.new_lines() if " sends " in line]
