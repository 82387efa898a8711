"""``clusterrun.launch``: a function runs on every rank of this node, and returns to the caller."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from clusterrun.from_python.job import Job
from clusterrun.from_python.pickled_call import Call

ReturnT = TypeVar("ReturnT")


def launch(
    fn: Callable[..., ReturnT],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    **options: Any,
) -> list[ReturnT]:
    """Run ``fn(*args, **kwargs)`` on every rank, and return what it returns, by rank.

    Args:
        fn: any function, of a notebook or ``__main__`` too; each rank gets a copy of its own, with
            copies of the arguments and of the global variables that it uses.
        args: its arguments.
        kwargs: its arguments by name.
        options: the options of the command by their names in Python, such as ``nproc_per_node=4``,
            ``numa_binding="none"``, ``max_restarts=1``, ``env={"NCCL_DEBUG": "INFO"}``, ``nnodes=2``.

    Returns:
        The results of this node's ranks, in the order of their ranks. Tensors of GPUs are on the CPU.

    Raises:
        WorkerFailed: a rank failed; its exception is the ``__cause__``.
        JobInterrupted: a signal from outside ended the job.
        KeyboardInterrupt: Ctrl-C, or a notebook's interrupt, has ended the job.
        LauncherError: an option has an impossible value, an argument can't be pickled, the nodes did
            not join, or a node was lost.
        TypeError: an option is unknown.

    """
    job = Job.start(Call(fn, args, kwargs or {}), options, called="launch")
    try:
        job.wait()
        return job.results()
    finally:
        job.close()
