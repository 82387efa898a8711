"""The end of a job as data: one line of JSON for the program that has started the command."""

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
from clusterrun.policy.outcome import Exited, Interrupted, Killed, Outcome, WorkerResult

BEGIN = b"\x1e"
"""Of a line that is ours; the caller's own mark follows, so that no worker can print one."""

LONGEST = 1 << 20
"""Bytes of a line."""

SHOW_OUTPUT = 0
"""A byte of the caller's; no signal has this number."""


def output_shown_line(mark: str) -> bytes:
    """Return the answer to ``SHOW_OUTPUT``."""
    return b"%b%b shown\n" % (BEGIN, mark.encode())


class EndReport(Struct, frozen=True, omit_defaults=True):
    """How the command ended; of a job whose worker failed, also which one."""

    code: StatusCode
    """The command's exit code."""
    reason: Name
    """The class of the outcome's reason (``clusterrun.policy.outcome``), or of an error of ours."""
    text: Text = ""
    """What the command prints if no program has started it so."""
    rank: Count | None = None
    host: Name = ""
    pid: ProcessId = 0
    exit_code: StatusCode | None = None
    """Of the worker."""
    signal: SignalNumberOrZero = 0
    """What killed the worker, or interrupted the job; 0: none did."""
    message: Text = ""
    """Of an error of ours."""
    hint: Text = ""

    @classmethod
    def of_error(cls, error: LauncherError) -> Self:
        """Return the report of a command that has started no job, or could not go on."""
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
        """Return the report of a job that has ended; ``text``: as it is printed."""
        made = cls(code=code, reason=type(outcome.reason).__name__, text=as_text(text))
        if isinstance(outcome.reason, Interrupted):
            return msgspec.structs.replace(made, signal=outcome.reason.number)
        return made if outcome.cause is None else made._with_cause(outcome.cause)

    def _with_cause(self, cause: WorkerResult) -> Self:
        return msgspec.structs.replace(
            self,
            rank=cause.rank,
            host=as_name(cause.host),
            pid=cause.pid,
            exit_code=cause.exit_status.code if isinstance(cause.exit_status, Exited) else None,
            signal=cause.exit_status.number if isinstance(cause.exit_status, Killed) else 0,
        )

    def line(self, mark: str) -> bytes:
        """Return the line for a caller with this mark."""
        return b"%b%b %b\n" % (BEGIN, mark.encode(), msgspec.json.encode(self))


def parse_report(received: bytes, mark: str) -> EndReport | None:
    """Return the report in what a caller has received; None: there is no whole one, or it is not ours."""
    _, found, rest = received.rpartition(BEGIN + mark.encode() + b" ")
    line, ended, _ = rest.partition(b"\n")
    if not (found and ended) or len(line) > LONGEST:
        return None
    try:
        return msgspec.json.decode(line, type=EndReport)
    except msgspec.MsgspecError:
        return None
