"""How a job that was started from Python can end, other than well."""

import signal


class WorkerFailed(RuntimeError):
    """A worker failed, and with it the job; the message is the job's report.

    ``__cause__`` is the exception that left the function, if the worker raised one and it could be
    unpickled, else a ``RemoteTraceback``.
    """

    __module__ = "clusterrun"

    def __init__(
        self, report: str, rank: int, host: str, exit_code: int | None, signal: int | None
    ) -> None:
        """Take the report, and how the worker that caused the end of the job ended.

        Args:
            report: what the command would have printed.
            rank: the worker's global rank.
            host: where it ran.
            exit_code: its exit code; None if a signal killed it, or it was never started.
            signal: the number of the signal that killed it; None if none did.

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
        """Take the report and the signal's number."""
        super().__init__(report, signal)
        self.report = report
        self.signal = signal

    def __str__(self) -> str:
        return self.report or f"{signal.Signals(self.signal).name} ended the job"


class RemoteTraceback(Exception):
    """The traceback of a worker's exception that could not be unpickled."""

    __module__ = "clusterrun"

    def __init__(self, text: str) -> None:
        """Take the traceback's text."""
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"
