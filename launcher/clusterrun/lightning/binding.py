"""Binding of this process, as a worker of a job would be bound: for programs that start themselves."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.nested_launches import WORKER_VARIABLES
from clusterrun.job.resolve import resolve
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import this_process
from clusterrun.run.preview import preview


def bind_this_process(local_rank: int, workers: int, devices: Sequence[int] = ()) -> str:
    """Bind all threads of this process to the CPUs of a worker of this node.

    Args:
        local_rank: which of the node's workers it is.
        workers: how many workers the node has.
        devices: the indices of their GPUs, in the order of the workers; (): the first visible ones.

    Returns:
        Why the process is not bound, or bound in another way than asked; "" if there is no remark.

    Raises:
        UsageError: ``local_rank`` is none of ``workers``; a device is not visible.

    """
    if not 0 <= local_rank < workers:
        raise UsageError(f"local rank {local_rank} is none of {workers} workers")
    # The program has its own ranks: a platform's variables may be set to them by now.
    asked = {"nproc_per_node": f"{workers}", "nnodes": "1", "cluster": "none"}
    if devices:
        asked["devices"] = ",".join(map(str, devices))
    environ = {name: text for name, text in os.environ.items() if name not in WORKER_VARIABLES}
    line = CommandLine({name: (Fact(text, name),) for name, text in asked.items()})
    _, plan = preview(resolve(line, environ, this_process("clusterrun"), for_topo=True), environ)
    worker = plan.workers[local_rank]
    if worker.cpus is None:
        return worker.remark
    for task in list(Path("/proc/self/task").iterdir()):
        # A thread may end meanwhile.
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), worker.cpus)
    return worker.remark
