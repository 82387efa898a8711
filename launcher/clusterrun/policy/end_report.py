"""The end of a job as one line of JSON, for the program that started the command."""

from typing import Self

import msgspec
from msgspec import Struct

from clusterrun.bounds import (
    Count,
    Name,
    ProcessId,
    SignalNumberOrZero,
    StatusCode,
    Text,
    as_name,
    as_text,
)
from clusterrun.errors import LauncherError
from clusterrun.policy.outcome import Exited, Interrupted, Killed, Outcome

RECORD_SEPARATOR = b"\x1e"
"""Starts a line of ours. The caller's random marker follows, which no worker can print."""

MAX_REPORT_BYTES = 1 << 20

SHOW_OUTPUT = 0
"""The byte with which the caller asks to show output; no signal has this number."""


def output_shown_line(marker: str) -> bytes:
    """Return the answer to ``SHOW_OUTPUT``."""
    return b"%b%b shown\n" % (RECORD_SEPARATOR, marker.encode())


class EndReport(Struct, frozen=True, omit_defaults=True):
    """How the command ended; if a worker failed, also which."""

    code: StatusCode
    """The command's exit code."""
    reason: Name
    """The class of the outcome's reason (``clusterrun.policy.outcome``), or of the launcher's error."""
    text: Text = ""
    """What the command would print without a caller."""
    rank: Count | None = None
    host: Name = ""
    pid: ProcessId = 0
    exit_code: StatusCode | None = None
    """The worker's."""
    signal: SignalNumberOrZero = 0
    """The signal that killed the worker or interrupted the job; 0: none."""
    message: Text = ""
    """Of the launcher's error."""
    hint: Text = ""

    @classmethod
    def of_error(cls, error: LauncherError) -> Self:
        """Return the report of a command that failed to start a job, or could not continue."""
        message, _, hint = str(error).partition("\n")
        return cls(
            code=error.exit_code,
            reason=type(error).__name__,
            text=as_text(error.explain()),
            message=as_text(message),
            hint=as_text(hint),
        )

    @classmethod
    def of_job(cls, code: int, outcome: Outcome, text: str) -> Self:
        """Return the report of a job that has ended; ``text`` is the printed report."""
        report = cls(code=code, reason=type(outcome.reason).__name__, text=as_text(text))
        if isinstance(outcome.reason, Interrupted):
            return msgspec.structs.replace(report, signal=outcome.reason.number)
        cause = outcome.cause
        if cause is None:
            return report
        return msgspec.structs.replace(
            report,
            rank=cause.rank,
            host=as_name(cause.host),
            pid=cause.pid,
            exit_code=cause.exit_status.code if isinstance(cause.exit_status, Exited) else None,
            signal=cause.exit_status.number if isinstance(cause.exit_status, Killed) else 0,
        )

    def line(self, marker: str) -> bytes:
        """Return the line for the caller with this marker."""
        return b"%b%b %b\n" % (RECORD_SEPARATOR, marker.encode(), msgspec.json.encode(self))


def parse_report(received: bytes, marker: str) -> EndReport | None:
    """Return the last report with this marker among the received bytes; None: there is no complete, valid one."""
    _, found, rest = received.rpartition(RECORD_SEPARATOR + marker.encode() + b" ")
    line, ended, _ = rest.partition(b"\n")
    if not (found and ended) or len(line) > MAX_REPORT_BYTES:
        return None
    try:
        return msgspec.json.decode(line, type=EndReport)
    except msgspec.MsgspecError:
        return None
