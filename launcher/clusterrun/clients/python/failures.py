"""Exceptions of jobs that are started from Python."""

import signal as signals


class WorkerFailed(RuntimeError):
    """A worker failed; the message is the job's report, or with ``Workers`` the rank's traceback.

    ``__cause__`` is the exception that left the function, if the worker raised one and it could be
    unpickled, else a ``RemoteTraceback``.
    """

    __module__ = "clusterrun"

    def __init__(
        self,
        report: str,
        rank: int,
        host: str,
        exit_code: int | None = None,
        signal: int | None = None,
    ) -> None:
        """Describe the failure by the worker that caused it.

        Args:
            report: the text that the command would have printed.
            rank: the worker's global rank.
            host: the host on which it ran.
            exit_code: its exit code; None if it still runs, was killed or was never started.
            signal: the signal that killed it, if any.

        """
        super().__init__(report, rank, host, exit_code, signal)
        self.report = report
        self.rank = rank
        self.host = host
        self.exit_code = exit_code
        self.signal = signal

    def __str__(self) -> str:
        return self.report


class JobInterrupted(RuntimeError):
    """A signal from outside ended the job; the message is the job's report."""

    __module__ = "clusterrun"

    def __init__(self, report: str, signal: int) -> None:
        super().__init__(report, signal)
        self.report = report
        self.signal = signal

    def __str__(self) -> str:
        return self.report or f"{signals.Signals(self.signal).name} ended the job"


class RemoteTraceback(Exception):
    """The traceback of a worker's exception that could not be unpickled."""

    __module__ = "clusterrun"

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"
