"""``clusterrun.spawn``: ``torch.multiprocessing.spawn``, with the launcher behind it."""

from collections.abc import Callable, Sequence
from typing import Any

from clusterrun.from_python.job import Job
from clusterrun.from_python.pickled_call import Call


class SpawnContext:
    """A job that runs beside its caller, as ``spawn(..., join=False)`` returns it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._has_ended = False

    def join(self, timeout: float | None = None) -> bool:
        """Wait until all ranks have ended; print what they print.

        Args:
            timeout: the longest wait in seconds; None: no limit.

        Returns:
            Whether they have ended.

        Raises:
            as ``clusterrun.launch``.

        """
        if self._has_ended:
            return True
        try:
            self._has_ended = self._job.wait(timeout)
            if self._has_ended:
                self._job.results()
        except BaseException:
            self._has_ended = True
            raise
        finally:
            if self._has_ended:
                self._job.close()
        return self._has_ended

    def interrupt(self) -> None:
        """End the job in order, as Ctrl-C does; ``join`` then raises ``JobInterrupted``.

        For any thread, also while another one waits in ``join``. A job that has ended stays as it is.
        """
        self._job.interrupt()

    def __del__(self) -> None:
        self._job.close()


def spawn(  # noqa: PLR0913, PLR0917 - torch's arguments, in torch's order
    fn: Callable[..., object],
    args: Sequence[object] = (),
    nprocs: int | None = None,
    join: bool = True,  # noqa: FBT001, FBT002 - as above
    daemon: bool = False,  # noqa: FBT001, FBT002 - as above
    start_method: str = "spawn",
    *,
    bind_numa: bool = True,
    **options: Any,
) -> SpawnContext | None:
    """Call ``fn(local_rank, *args)`` in ``nprocs`` processes, as ``torch.multiprocessing.spawn`` does.

    Args:
        fn: the function.
        args: its arguments after the local rank.
        nprocs: the number of processes; None: one for each GPU.
        join: whether to wait until all have ended.
        daemon: accepted for torch's sake: the processes never outlive the caller.
        start_method: accepted for torch's sake; ``clusterrun`` chooses (``--start-method``).
        bind_numa: whether each process is bound to the NUMA node of its GPU.
        options: those of ``clusterrun.launch``.

    Returns:
        None, or the job if ``join`` is False.

    Raises:
        as ``clusterrun.launch``.

    """
    del daemon, start_method
    if "nproc_per_node" in options:
        raise TypeError("spawn() takes no nproc_per_node: type nprocs")
    options.setdefault("numa_binding", None if bind_numa else "none")
    options["nproc_per_node"] = nprocs
    call = Call(fn, args, {}, local_rank_first=True)
    context = SpawnContext(Job.start(call, options, called="spawn"))
    if not join:
        return context
    context.join()
    return None
