"""Native frames and locals by py-spy, for ranks on this node: ``clusterrun stacks --native``."""

import subprocess
from collections.abc import Mapping
from shutil import which

from clusterrun.cli.chosen_run import answer_of
from clusterrun.cli.printing import print_text
from clusterrun.control.messages import LookInside
from clusterrun.control.running_jobs import RunningJob
from clusterrun.domain.looks import JobLook, LookAtRanks, NodeRanks
from clusterrun.errors import MachineError, UsageError

SECONDS_FOR_ONE = 30.0
"""py-spy reads the symbols of all libraries of the process: torch's take seconds."""


def native_stacks(job: RunningJob, rank: int | None, environ: Mapping[str, str]) -> int:
    """Print what py-spy prints of each rank on this node.

    Raises:
        UsageError: py-spy is not installed, or no such rank runs on this node.
        MachineError: py-spy may not look into the processes.

    """
    program = which("py-spy", path=environ.get("PATH"))
    if program is None:
        raise UsageError("--native needs py-spy, which is not on PATH", "type pip install py-spy")
    seen = answer_of(job, LookInside(LookAtRanks()), JobLook)
    here = job.described.node_rank
    found = {
        each.rank: each.pid
        for node in seen.of(NodeRanks)
        for each in node.ranks
        if node.node_rank == here and each.pid and rank in {None, each.rank}
    }
    if not found:
        where = next(
            (
                f"rank {rank} is on node {node.node_rank} ({node.host}): type it there"
                for node in seen.of(NodeRanks)
                if any(each.rank == rank for each in node.ranks)
            ),
            "clusterrun status shows where ranks run",
        )
        raise UsageError("--native shows ranks of this node, and no such rank runs here", where)
    return print_text("\n".join(_dump(program, each, pid) for each, pid in found.items()))


def _dump(program: str, rank: int, pid: int) -> str:
    words = [program, "dump", "--native", "--locals", "--pid", str(pid)]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=SECONDS_FOR_ONE, check=False
        )
    except subprocess.TimeoutExpired:
        return f"rank {rank}: py-spy took longer than {SECONDS_FOR_ONE:g} s"
    if done.returncode:
        raise MachineError(
            f"py-spy can't look into rank {rank}, pid {pid}: {done.stderr.strip()}",
            "it needs the right to trace processes: see /proc/sys/kernel/yama/ptrace_scope, or,"
            " in a container, the capability SYS_PTRACE",
        )
    return f"rank {rank}:\n{done.stdout.rstrip()}"
