"""What a Python program calls: ``launch``, ``spawn``, and ``Workers`` for many calls.

launch    a function runs on every rank of this node, and returns to the caller
spawn     ``torch.multiprocessing.spawn``, with the launcher behind it
Workers   calls one after the other, with the same options
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from clusterrun.clients.python.call import FunctionCall, options_of
from clusterrun.clients.python.job import CalledJob

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
    return _call(FunctionCall(fn, args, kwargs or {}), options, called="launch")


class SpawnContext:
    """A job that runs beside its caller, as ``spawn(..., join=False)`` returns it."""

    def __init__(self, job: CalledJob) -> None:
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
    call = FunctionCall(fn, args, {}, local_rank_first=True)
    context = SpawnContext(CalledJob.start(call, options, called="spawn"))
    if not join:
        return context
    context.join()
    return None


class Workers:
    """Runs functions on ranks, one call after the other: a job of its own for each call.

    Example::

        with clusterrun.Workers(4, preload=["torch"]) as workers:
            losses = [workers.run(train, rate) for rate in (0.1, 0.01)]
    """

    def __init__(
        self,
        nproc_per_node: int | str | None = None,
        **options: Any,
    ) -> None:
        """Take the number of ranks, and the options of ``clusterrun.launch``.

        Raises:
            TypeError: an option is unknown, or has a value of a wrong type.

        """
        self._options = {**options, "nproc_per_node": nproc_per_node}
        options_of("Workers", self._options)
        self._is_closed = False

    def run(self, fn: Callable[..., ReturnT], *args: object, **kwargs: object) -> list[ReturnT]:
        """Run ``fn(*args, **kwargs)`` on every rank, and return what it returns, by rank.

        Raises:
            as ``clusterrun.launch``.
            ValueError: this object is closed.

        """
        if self._is_closed:
            raise ValueError("these Workers are closed")
        return _call(FunctionCall(fn, args, kwargs), self._options, called="Workers")

    def close(self) -> None:
        """Let nothing more be run."""
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _call(call: FunctionCall, options: Mapping[str, object], *, called: str) -> list[Any]:
    """Run a call to its end, and return the results of its ranks; raise as ``launch``."""
    job = CalledJob.start(call, options, called=called)
    try:
        job.wait()
        return job.results()
    finally:
        job.close()
