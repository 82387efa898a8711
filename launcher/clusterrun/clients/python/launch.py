"""``launch``, which runs one function on every rank; and ``spawn``, a replacement for torch's."""

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from clusterrun import errors
from clusterrun.clients.python import wire
from clusterrun.clients.python.call import FunctionCall, cell_sources, command_line, pickle_call
from clusterrun.clients.python.command import CommandProcess, Peer
from clusterrun.clients.python.failures import JobInterrupted, RemoteTraceback, WorkerFailed
from clusterrun.errors import InternalError, LauncherError, MachineError, NodeLostError
from clusterrun.policy.end_report import EndReport

ReturnT = TypeVar("ReturnT")

INTERRUPTS_TO_KILL = 2
"""Further interrupts kill the command itself."""


def launch(
    fn: Callable[..., ReturnT],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    **options: Any,
) -> list[ReturnT]:
    """Run ``fn(*args, **kwargs)`` on every rank, and return the results by rank.

    Args:
        fn: any function, even from a notebook or ``__main__``; each rank gets its own copy, with copies
            of the arguments and of the global variables that it uses.
        args: positional arguments.
        kwargs: keyword arguments.
        options: options of the command by their Python names, such as ``nproc_per_node=4``,
            ``numa_binding="none"``, ``max_restarts=1``, ``env={"NCCL_DEBUG": "INFO"}``, ``nnodes=2``;
            ``hosts="a,b"`` are reached by ssh.

    Returns:
        The results of this node's ranks, or of the ranks on all ``hosts``, by rank. GPU tensors are
        moved to the CPU.

    Raises:
        WorkerFailed: a rank failed; its exception is the ``__cause__``.
        JobInterrupted: a signal from outside ended the job.
        KeyboardInterrupt: Ctrl-C, or a notebook's interrupt, has ended the job.
        LauncherError: an option has an impossible value, an argument can't be pickled, the nodes did
            not join, or a node was lost.
        TypeError: an option is unknown.

    """
    job = FunctionJob(FunctionCall(fn, args, kwargs or {}), options, called="launch")
    job.run()
    return job.results()


class SpawnContext:
    """A job that runs in the background, which ``spawn(..., join=False)`` returns."""

    def __init__(self, job: "FunctionJob") -> None:
        """Serve the ranks in a thread, so they do not wait for ``join``."""
        self._job = job
        self._thread = threading.Thread(target=job.run, name="clusterrun.spawn", daemon=True)
        self._thread.start()
        self._is_joined = False

    def join(self, timeout: float | None = None) -> bool:
        """Wait until all ranks have ended, for at most ``timeout`` seconds.

        Returns:
            Whether all ranks have ended.

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
                self._job.on_keyboard_interrupt()
        self._is_joined = True
        self._job.results()
        return True

    def interrupt(self) -> None:
        """Stop the job gracefully, as Ctrl-C does; ``join`` then raises ``JobInterrupted``.

        Any thread may call this, even while another waits in ``join``. It has no effect on a job that
        has ended.
        """
        self._job.interrupt()

    def __del__(self) -> None:
        # The thread waits for the end of the job.
        self._job.close_lifeline()


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
        nprocs: the number of processes, by default one for each GPU.
        join: whether to wait until all have ended.
        daemon: ignored, as the processes never outlive the caller.
        start_method: ignored; the job option ``--start-method`` applies.
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
    job.run()
    job.results()
    return None


class FunctionJob:
    """A job whose ranks make one call, and then exit."""

    def __init__(self, call: FunctionCall, options: Mapping[str, object], *, called: str) -> None:
        """Start the job.

        Args:
            call: what each rank calls.
            options: the job's options by name.
            called: the public function that the user has called, for messages.

        Raises:
            UsageError: the call can't be pickled.
            TypeError: an option is unknown.

        """
        words, on_other_hosts = command_line(called, options)
        parts = pickle_call(call, lines=cell_sources())
        self._interrupts = 0
        self._command = CommandProcess(
            words,
            lambda peer: self._command.send(peer, wire.LAST_CALL, 1, parts),
            # Ctrl-C also ends a job that another thread waits for.
            own_group=False,
            on_other_hosts=on_other_hosts,
        )

    def run(self) -> None:
        """Show the job's output, and receive answers of ranks, until the job has ended.

        The first two KeyboardInterrupts are sent to the job as SIGINT; the next one kills it.
        """
        command = self._command
        try:
            while not command.has_ended or command.has_output:
                try:
                    command.poll(None)
                except KeyboardInterrupt:
                    self.on_keyboard_interrupt()
                if command.fault is not None:
                    command.kill()
        finally:
            command.close()

    def on_keyboard_interrupt(self) -> None:
        """Handle a KeyboardInterrupt, from Ctrl-C or a notebook."""
        self._interrupts += 1
        if self._interrupts > INTERRUPTS_TO_KILL:
            self._command.kill()
        self.interrupt()

    def interrupt(self) -> None:
        """Stop the job gracefully, if it still runs; any thread may call this."""
        self._command.signal(signal.SIGINT)

    def results(self) -> list[Any]:
        """Return the results by rank, of this node or all hosts, once the job has ended.

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
        return [result_of(peer) for _, peer in sorted(command.peers.items())]

    def close_lifeline(self) -> None:
        """Make the job stop as after SIGTERM, if it still runs; any thread may call this."""
        self._command.close_lifeline()


def result_of(peer: Peer) -> Any:
    """Return the result of the function on a rank.

    Raises:
        WorkerFailed: the rank has exited inside the function.
        Exception: what unpickling raises, with a note that names the rank.

    """
    if peer.answer is None:
        text = f"rank {peer.rank} exited with code 0 inside the function"
        raise WorkerFailed(text, peer.rank, peer.host, exit_code=0)
    try:
        return wire.loads(peer.answer[2])
    except Exception as error:
        error.add_note(f"while clusterrun unpickled the result of rank {peer.rank}")
        raise


def remote_exception(peer: Peer | None) -> tuple[str, BaseException | None]:
    """Return the traceback and the exception of the function on a rank, ("", None) without one.

    An exception that could not be pickled or unpickled is replaced by ``RemoteTraceback``.
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
    """Return the exception for a job that has failed.

    Args:
        report: the command's report, None if the command has ended without one.
        exit_code: the command's exit code, or -N for signal N.
        peers: the job's ranks.

    """
    if report is None:
        return _exception_without_report(exit_code)
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
            # For the caller, the call was stopped from outside.
            return JobInterrupted(report.text, signal.SIGTERM)
        case "NodeLost":
            return NodeLostError(report.text)
        case "Succeeded":
            return MachineError(report.text)
        case kind:
            found: type[LauncherError] = getattr(errors, kind, InternalError)
            return found(report.message or report.text, report.hint)


def _exception_without_report(exit_code: int) -> Exception:
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number > 0:
        name = signal.Signals(number).name
        return JobInterrupted(f"clusterrun: {name} ended the launcher of the job", number)
    return InternalError(
        f"the launcher of the job exited with code {exit_code}; its error is above"
    )
