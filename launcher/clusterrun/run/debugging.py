"""Ranks whose program is run by another one, which debugs or profiles it.

``--debug`` has a rank wait for a debugger, by debugpy; ``--pdb`` opens pdb where one fails;
``--profile`` records some steps, by torch.profiler.
"""

import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from clusterrun.errors import UsageError
from clusterrun.job.job import Job
from clusterrun.planning.plan import NodePlan, WorkerPlan
from clusterrun.run.node import LocalNode
from clusterrun.workers.node_workers import WRAPPERS
from clusterrun.workers.terminal import Terminal

USUAL_PORT = 5678
"""debugpy's own, which editors suggest."""

HOST = "127.0.0.1"
"""Any program that reaches the port may run any code: those of other machines do not."""

SECONDS_TO_ANSWER = 30.0

HAS_MODULE = (
    "import importlib.util, sys; sys.exit(3 if importlib.util.find_spec({!r}) is None else 0)"
)
LACKS_MODULE = 3


def check_wrappers(node: LocalNode) -> None:
    """Check that ranks can be debugged or profiled on this node.

    Raises:
        UsageError: the job has no such rank, its interpreter lacks a module, or there is no
            terminal for pdb.

    """
    job = node.job
    debug, profile = job.fact("debug"), job.fact("profile")
    if debug.value is not None:
        _check_rank(node, debug.value, debug.origin)
        _check_module(node, "debugpy", debug.origin)
    elif profile.value is not None:
        _check_rank(node, profile.value.lowest, profile.origin)
        _check_module(node, "torch", profile.origin)
    elif Terminal.in_foreground(0) is None:
        raise UsageError(
            f"{job.origin('pdb')} needs a terminal, and standard input is not one",
            "type the command on a terminal, or give --debug RANK",
        )


def _check_rank(node: LocalNode, rank: int, origin: str) -> None:
    # Ranks of several nodes are known once these have joined.
    if node.job.agents == 1 and rank >= node.workers:
        raise UsageError(
            f"{origin}: there is no rank {rank}",
            f"the job has {node.workers}: give one from 0 to {node.workers - 1}",
        )


def _check_module(node: LocalNode, name: str, origin: str) -> None:
    python = node.job.program.python
    try:
        done = subprocess.run(
            [python, "-c", HAS_MODULE.format(name)],
            env=node.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS_TO_ANSWER,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        # The worker will say what is wrong with the interpreter.
        return
    if done.returncode == LACKS_MODULE:
        raise UsageError(
            f"{origin} needs {name}, which {python} does not have",
            f"type {python} -m pip install {name}",
        )


def with_wrappers(
    plan: NodePlan, job: Job, profile_of: Callable[[NodePlan, WorkerPlan], Path | None]
) -> tuple[NodePlan, str]:
    """Return the plan in which workers of this node execute what debugs or profiles the program.

    Args:
        plan: of an attempt that begins now.
        job: asks for it.
        profile_of: returns the file for the profile of a worker; None without a log folder.

    Returns:
        The plan, and a line for the user; "" for none.

    """
    debug, profile = job.fact("debug"), job.fact("profile")
    size = plan.world.size
    if debug.value is not None and debug.value >= size:
        return plan, f"{debug.origin}: there is no rank {debug.value}: no rank waits for a debugger"
    if profile.value is not None and profile.value.lowest >= size:
        return plan, f"{profile.origin}: there is no rank {profile.value}: no profile is written"
    wrappers: dict[int, tuple[str, ...]] = {}
    notice = ""
    for worker in plan.workers:
        if worker.rank == debug.value:
            port = _free_port()
            wrappers[worker.rank] = _debugpy(port)
            notice = (
                f"rank {worker.rank} on {plan.host} waits for a debugger on port {port} of {HOST}"
            )
        elif job.debugging.pdb:
            wrappers[worker.rank] = (str(WRAPPERS / "post_mortem.py"), os.ttyname(0))
        elif profile.value is not None and worker.rank in profile.value:
            wrappers[worker.rank] = (str(WRAPPERS / "profiled.py"), str(profile_of(plan, worker)))
    workers = tuple(
        replace(worker, wrapper=wrappers.get(worker.rank, ())) for worker in plan.workers
    )
    return replace(plan, workers=workers), notice


def _debugpy(port: int) -> tuple[str, ...]:
    # Python warns that a debugger may miss breakpoints in modules that it has frozen.
    words = ("-m", "debugpy", "--listen", f"{HOST}:{port}", "--wait-for-client")
    return ("-X", "frozen_modules=off", *words)


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
