"""Ranks that a person debugs.

``--debug`` has one of them wait for a debugger, by debugpy; ``--pdb`` opens pdb where one fails.
"""

import os
import socket
import subprocess
from collections.abc import Mapping
from contextlib import closing

from msgspec.structs import replace

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec
from clusterrun.domain.plan import NodePlan
from clusterrun.errors import UsageError
from clusterrun.workers.terminal import Terminal
from clusterrun.workers.worker_group import POST_MORTEM

USUAL_PORT = 5678
"""debugpy's own, which editors suggest."""

HOST = "127.0.0.1"
"""Any program that reaches the port may run any code: those of other machines do not."""

SECONDS_TO_ANSWER = 30.0

HAS_DEBUGPY = "import importlib.util, sys; sys.exit(importlib.util.find_spec('debugpy') is None)"


def check_debugger(job: JobSpec, workers: int, environ: Mapping[str, str]) -> None:
    """Check that ranks can be debugged on this node.

    Args:
        job: what to run.
        workers: their number on this node.
        environ: the job's environment, as the user made it.

    Raises:
        UsageError: the job's interpreter has no debugpy, or the job has no such rank; there is no
            terminal for pdb.

    """
    if job.pdb.value:
        _check_terminal(job.pdb.origin)
        return
    rank = job.debug
    if job.agents == 1 and rank.value is not None and rank.value >= workers:
        raise UsageError(
            f"{rank.origin}: there is no rank {rank.value}",
            f"the job has {workers}: give one from 0 to {workers - 1}",
        )
    if not _has_debugpy(job.python.value, environ):
        raise UsageError(
            f"{rank.origin} needs debugpy, which {job.python.value} does not have",
            f"type {job.python.value} -m pip install debugpy",
        )


def _check_terminal(origin: str) -> None:
    if Terminal.in_foreground(0) is None:
        raise UsageError(
            f"{origin} needs a terminal, and standard input is none",
            "type the command on a terminal, or give --debug RANK",
        )


def with_post_mortem(plan: NodePlan) -> NodePlan:
    """Return the plan in which each worker opens pdb where its program fails."""
    wrapper = (str(POST_MORTEM), os.ttyname(0))
    workers = tuple(replace(worker, wrapper=wrapper) for worker in plan.workers)
    return replace(plan, workers=workers)


def _has_debugpy(python: str, environ: Mapping[str, str]) -> bool:
    words = [python, "-c", HAS_DEBUGPY]
    try:
        done = subprocess.run(
            words,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS_TO_ANSWER,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        # The worker will say what is wrong with the interpreter.
        return True
    return done.returncode != 1


def with_debugger(plan: NodePlan, rank: Fact[int | None]) -> tuple[NodePlan, str]:
    """Return the plan in which the rank, if it is on this node, waits for a debugger; and a notice."""
    if rank.value is not None and rank.value >= plan.world.size:
        return plan, f"{rank.origin}: there is no rank {rank.value}: no rank waits for a debugger"
    if all(worker.rank != rank.value for worker in plan.workers):
        return plan, ""
    port = _free_port()
    # Python warns that the debugger may miss breakpoints in modules that it has frozen.
    wrapper = (
        *("-X", "frozen_modules=off"),
        *("-m", "debugpy", "--listen", f"{HOST}:{port}", "--wait-for-client"),
    )
    workers = tuple(
        replace(worker, wrapper=wrapper) if worker.rank == rank.value else worker
        for worker in plan.workers
    )
    notice = f"rank {rank.value} on {plan.host} waits for a debugger on port {port} of {HOST}"
    return replace(plan, workers=workers), notice


def _free_port() -> int:
    """Return the usual port, or another one if it is in use."""
    for port in (USUAL_PORT, 0):
        with closing(socket.socket()) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, port))
                listener.listen()
            except OSError:
                continue
            return int(listener.getsockname()[1])
    return USUAL_PORT
