"""What a Python program calls for one call: ``launch``, and ``spawn`` in torch's place."""

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from clusterrun import errors
from clusterrun.clients.python import wire
from clusterrun.clients.python.call import FunctionCall, cells, command_line, pickled
from clusterrun.clients.python.command import CommandProcess, Peer
from clusterrun.clients.python.failures import JobInterrupted, RemoteTraceback, WorkerFailed
from clusterrun.errors import InternalError, LauncherError, MachineError, NodeLostError
from clusterrun.policy.end_report import EndReport

ReturnT = TypeVar("ReturnT")

INTERRUPTS_TO_KILL = 2
"""The next one after these kills the command itself."""


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
            ``numa_binding="none"``, ``max_restarts=1``, ``env={"NCCL_DEBUG": "INFO"}``, ``nnodes=2``;
            ``hosts="a,b"`` are reached by ssh.

    Returns:
        The results of this node's ranks, or of all ``hosts``, in the order of their ranks. Tensors of
        GPUs are on the CPU.

    Raises:
        WorkerFailed: a rank failed; its exception is the ``__cause__``.
        JobInterrupted: a signal from outside ended the job.
        KeyboardInterrupt: Ctrl-C, or a notebook's interrupt, has ended the job.
        LauncherError: an option has an impossible value, an argument can't be pickled, the nodes did
            not join, or a node was lost.
        TypeError: an option is unknown.

    """
    job = FunctionJob(FunctionCall(fn, args, kwargs or {}), options, called="launch")
    try:
        job.serve()
        return job.results()
    finally:
        job.close()


class SpawnContext:
    """A job that runs beside its caller, as ``spawn(..., join=False)`` returns it."""

    def __init__(self, job: "FunctionJob") -> None:
        """Serve its ranks in a thread: they do not wait for ``join``."""
        self._job = job
        self._thread = threading.Thread(
            target=_serve_and_close, args=[job], name="clusterrun.spawn", daemon=True
        )
        self._thread.start()
        self._is_joined = False

    def join(self, timeout: float | None = None) -> bool:
        """Wait until all ranks have ended.

        Args:
            timeout: the longest wait in seconds; None: no limit.

        Returns:
            Whether they have ended.

        Raises:
            as ``clusterrun.launch``.

        """
        if self._is_joined:
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._thread.is_alive():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            try:
                self._thread.join(left)
            except KeyboardInterrupt:
                self._job.interrupted()
        self._is_joined = True
        self._job.results()
        return True

    def interrupt(self) -> None:
        """End the job in order, as Ctrl-C does; ``join`` then raises ``JobInterrupted``.

        For any thread, also while another one waits in ``join``. A job that has ended stays as it is.
        """
        self._job.interrupt()

    def __del__(self) -> None:
        # Its thread waits for the end.
        self._job.close_lifeline()


def _serve_and_close(job: "FunctionJob") -> None:
    try:
        job.serve()
    finally:
        job.close()


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
        raise TypeError("spawn() takes no nproc_per_node: use nprocs")
    options.setdefault("numa_binding", None if bind_numa else "none")
    options["nproc_per_node"] = nprocs
    call = FunctionCall(fn, args, {}, local_rank_first=True)
    job = FunctionJob(call, options, called="spawn")
    if not join:
        return SpawnContext(job)
    try:
        job.serve()
        job.results()
    finally:
        job.close()
    return None


class FunctionJob:
    """A job whose ranks make one call, with which they end."""

    def __init__(self, call: FunctionCall, options: Mapping[str, object], *, called: str) -> None:
        """Start it.

        Args:
            call: what each rank calls.
            options: the job's, by name.
            called: the public function that has been called, for messages.

        Raises:
            UsageError: a part of the call can't be pickled.
            TypeError: an option is unknown.

        """
        words, on_other_hosts = command_line(called, options)
        parts = pickled(call, lines=cells())
        self._interrupts = 0
        self._command = CommandProcess(
            words,
            lambda peer: self._command.send(peer, wire.LAST_CALL, 1, parts),
            # Ctrl-C also ends a job that another thread waits for.
            own_group=False,
            on_other_hosts=on_other_hosts,
        )

    def serve(self) -> None:
        """Print what the job prints, and take what its ranks answer, until it has ended.

        A KeyboardInterrupt ends the job in order, a second one at once.
        """
        command = self._command
        while not command.has_ended or command.has_output:
            try:
                command.turn(None)
            except KeyboardInterrupt:
                self.interrupted()
            if command.fault is not None:
                command.kill()

    def interrupted(self) -> None:
        """Take note of a KeyboardInterrupt, by Ctrl-C or by a notebook."""
        self._interrupts += 1
        if self._interrupts > INTERRUPTS_TO_KILL:
            self._command.kill()
        self.interrupt()

    def interrupt(self) -> None:
        """Have the job end in order, if it still runs; for any thread."""
        self._command.signal(signal.SIGINT)

    def results(self) -> list[Any]:
        """Return the results of this node's ranks, or of all hosts', by rank, once the job has ended.

        Raises:
            as ``launch``.

        """
        command = self._command
        exit_code = command.exit_code()
        if self._interrupts:
            raise KeyboardInterrupt
        if command.fault is not None:
            raise command.fault
        report = command.report
        if report is None or report.code:
            raise exception_of_job(report, exit_code, command.peers)
        return [_returned(peer) for _, peer in sorted(command.peers.items())]

    def close(self) -> None:
        """End the job if it still runs; nothing in a forked child."""
        self._command.close()

    def close_lifeline(self) -> None:
        """Have the job end as by SIGTERM, if it still runs; for any thread."""
        self._command.close_lifeline()


def _returned(peer: Peer) -> Any:
    """Return what the function returned on a rank.

    Raises:
        WorkerFailed: it has left the function without a result.
        Exception: what unpickling raises, with a note that names the rank.

    """
    if peer.answer is None:
        text = f"rank {peer.rank} exited with code 0 inside the function"
        raise WorkerFailed(text, peer.rank, peer.host, exit_code=0)
    return value_of(peer)


def value_of(peer: Peer) -> Any:
    """Return what a rank has answered.

    Raises:
        Exception: what unpickling raises, with a note that names the rank.

    """
    if peer.answer is None:
        raise AssertionError(f"rank {peer.rank} has answered")
    try:
        return wire.loads(peer.answer[2])
    except Exception as error:
        error.add_note(f"while clusterrun unpickled the result of rank {peer.rank}")
        raise


def remote_exception(peer: Peer | None) -> tuple[str, BaseException | None]:
    """Return the traceback of what has left the function on a rank, and the exception; "", None: none did.

    A ``RemoteTraceback`` instead, if the exception could not be pickled or unpickled.
    """
    if peer is None or peer.answer is None or peer.answer[0] != wire.RAISED:
        return "", None
    first, *rest = peer.answer[2]
    text, error = first.decode(), None
    if rest:
        try:
            error = wire.loads(rest)
        except Exception:  # noqa: BLE001 - a class may need more arguments than it has pickled
            error = None
    return text, error if isinstance(error, BaseException) else RemoteTraceback(text)


def exception_of_job(
    report: EndReport | None, exit_code: int, peers: Mapping[int, Peer]
) -> Exception:
    """Return what a job that has failed raises.

    Args:
        report: the command's; None: it has ended without one.
        exit_code: the command's.
        peers: its ranks.

    """
    if report is None:
        return _ended_early(exit_code)
    match report.reason:
        case "WorkerFailed" if report.rank is not None:
            failed = WorkerFailed(
                report.text, report.rank, report.host, report.exit_code, report.signal or None
            )
            failed.__cause__ = remote_exception(peers.get(report.rank))[1]
            return failed
        case "Interrupted":
            return JobInterrupted(report.text, report.signal)
        case "OutputGone":
            return JobInterrupted(report.text, signal.SIGPIPE)
        case "Suspended" | "NotSuspended":
            # As the caller sees it, something from outside has stopped the call.
            return JobInterrupted(report.text, signal.SIGTERM)
        case "NodeLost":
            return NodeLostError(report.text)
        case "Succeeded":
            return MachineError(report.text)
        case kind:
            found: type[LauncherError] = getattr(errors, kind, InternalError)
            return found(report.message or report.text, report.hint)


def _ended_early(exit_code: int) -> Exception:
    """Return what it means that a command has ended without a report."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number > 0:
        name = signal.Signals(number).name
        return JobInterrupted(f"clusterrun: {name} ended the launcher of the job", number)
    return InternalError(
        f"the launcher of the job exited with code {exit_code}; its error is above"
    )
