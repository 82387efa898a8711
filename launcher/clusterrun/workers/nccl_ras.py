"""Asks NCCL what the ranks have launched: its RAS, which a thread of each process serves by TCP.

``ask_nccl`` waits, up to 20 s: it is to run in an ``AskedChild``, never in the agent's loop.

The protocol is that of src/ras/client_support.cc in NCCL 2.24.3 to 2.30.7. A client sends lines, and
gets a line for each; after ``STATUS`` comes the report, then the connection is closed.

    CLIENT PROTOCOL 2       SERVER PROTOCOL 2, in all versions
    TIMEOUT 2               OK: seconds that NCCL waits for each hop to a silent process, 5 by default
    SET FORMAT json         OK since 2.28.7; before, "ERROR: Unknown command ..."
    STATUS                  the report
    VERBOSE STATUS          the same, with more details as text
"""

import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from clusterrun.bounds import as_line
from clusterrun.job.nested_launches import RAS_VARIABLE
from clusterrun.planning.plan import WorkerPlan
from clusterrun.planning.variables import serves_ras
from clusterrun.policy.nccl import (
    NcclRanks,
    NcclSilence,
    NcclState,
    NcclText,
    RasReport,
    compared,
    encoded,
    report_of_older,
)

MOST_ADDRESSES = 3
"""A process that is stopped does not answer, and another one knows the same."""

DEFAULT_ADDRESS = "localhost:28028"
"""Where NCCL listens without NCCL_RAS_ADDR."""

SECONDS_PER_HOP = 2
"""For ``TIMEOUT``: a report without a silent process then comes within 2 to 7 s."""

LONGEST_LINE_OF_SERVER = 4096
"""Bytes."""

LIBRARY = "libnccl"

# NCCL 2.28.7 and 2.28.9 write this without the comma, so a report with a missing rank is not JSON.
_NO_COMMA = re.compile(rb'("nvml_dev": -?\d+)(\s+"status")')


class RasLimits(Struct, frozen=True):
    """How long NCCL is waited for, in seconds, and how much of its answer is read."""

    silence: float = 0.5
    """Until it accepts the connection, and for each line before the report."""
    between: float = 1.0
    """From the first report to the second query."""
    report: float = 9.0
    """For one query; NCCL itself gives up after 10 s, or earlier with ``SECONDS_PER_HOP``."""
    most_bytes: int = 64 << 20
    """4,096 ranks in one communicator take 2.2 MB."""


USUAL = RasLimits()


class _NoAnswerError(Exception):
    """Why there is no report."""


class _LateError(_NoAnswerError):
    """A process answers, but not in time: no other one would be faster."""


def ras_addresses(workers: Iterable[WorkerPlan], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return where to ask the NCCL of these workers, the first three; () if the user has switched it off.

    Args:
        workers: those of one program that run on this node, by local rank.
        environment: what all of them have.

    """
    found: dict[str, None] = {}
    for worker in workers:
        own = {**environment, **worker.env}
        if serves_ras(own):
            found[own.get(RAS_VARIABLE, DEFAULT_ADDRESS)] = None
    return tuple(found)[:MOST_ADDRESSES]


def nccl_answer(addresses: Sequence[str], pids: Iterable[int]) -> bytes:
    """Return what ``ask_nccl`` finds, encoded: at most 256 KiB."""
    return encoded(ask_nccl(addresses, pids))


def ask_nccl(
    addresses: Sequence[str], pids: Iterable[int] = (), limits: RasLimits = USUAL
) -> NcclState:
    """Return what the NCCL of one of these processes knows of the job, from two reports.

    Args:
        addresses: ``HOST:PORT`` or ``[IPV6]:PORT``; the next one is asked if one does not answer.
        pids: the workers of this node, one of which may have loaded libnccl.
        limits: for tests.

    """
    reasons = []
    for address in addresses[:MOST_ADDRESSES]:
        try:
            return NcclState(_two_reports(address, limits), is_mapped=True)
        except _NoAnswerError as error:
            reasons.append(f"{address} {error}")
            if isinstance(error, _LateError):
                break
    why = "; ".join(reasons) or "NCCL_RAS_ENABLE switches that off"
    return NcclState(NcclSilence(as_line(why)), any(map(maps_libnccl, pids)))


def maps_libnccl(pid: int) -> bool:
    """Return whether a process of this user has loaded NCCL's library; False if it has ended."""
    try:
        return LIBRARY in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _two_reports(address: str, limits: RasLimits) -> NcclRanks | NcclText:
    first = _report(address, limits)
    if isinstance(first, NcclText):
        return first
    time.sleep(limits.between)
    second = _report(address, limits)
    # Another process may have got the port meanwhile.
    return second if isinstance(second, NcclText) else compared(first, second)


def _report(address: str, limits: RasLimits) -> RasReport | NcclText:
    """Return the answer to one query.

    Raises:
        _NoAnswerError: there is none.

    """
    try:
        with _Connection(address, limits) as nccl:
            hello = nccl.ask("CLIENT PROTOCOL 2")
            if not hello.upper().startswith("SERVER PROTOCOL "):
                raise _NoAnswerError(f"is not NCCL: {hello[:60]!r}")
            nccl.ask(f"TIMEOUT {SECONDS_PER_HOP}")
            is_json = nccl.ask("SET FORMAT json") == "OK"
            body = nccl.ask_for_all("STATUS" if is_json else "VERBOSE STATUS")
    except TimeoutError as error:
        raise _NoAnswerError("does not answer") from error
    except OSError as error:
        raise _NoAnswerError(f"does not answer: {error.strerror or error}") from error
    if not is_json:
        return report_of_older(body.decode(errors="replace"))
    try:
        return msgspec.json.decode(_NO_COMMA.sub(rb"\1,\2", body), type=RasReport)
    except msgspec.MsgspecError as error:
        raise _NoAnswerError("has sent half a report, or another than expected") from error


class _Connection:
    """A connection to NCCL, for one query."""

    def __init__(self, address: str, limits: RasLimits) -> None:
        """Connect.

        Raises:
            OSError: nothing listens there, or it does not accept in time.
            _NoAnswerError: this is not an address.

        """
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise _NoAnswerError("is not an address like 127.0.0.1:28028")
        self._limits = limits
        self._until = time.monotonic() + limits.report
        self._unread = b""
        where = host.strip("[]") or "localhost", int(port)
        self._socket = socket.create_connection(where, limits.silence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, line: str) -> str:
        """Send a line; return the one that answers it.

        Raises:
            OSError: it does not come.
            _NoAnswerError: the connection is closed, or this is not a line.

        """
        self._socket.sendall(f"{line}\n".encode())
        while b"\n" not in self._unread:
            chunk = self._read(self._limits.silence)
            self._unread += chunk
            if not chunk or len(self._unread) > LONGEST_LINE_OF_SERVER:
                raise _NoAnswerError("is not NCCL, or has ended")
        answer, _, self._unread = self._unread.partition(b"\n")
        return as_line(answer.decode(errors="replace").strip())

    def ask_for_all(self, line: str) -> bytes:
        """Send a line; return all that comes until the connection is closed.

        Raises:
            OSError: the connection breaks off.
            _NoAnswerError: it is too much, or not closed in time.

        """
        self._socket.sendall(f"{line}\n".encode())
        return b"".join([self._unread, *self._chunks()])

    def _chunks(self) -> Iterator[bytes]:
        size = 0
        try:
            while chunk := self._read(self._limits.report):
                size += len(chunk)
                if size > self._limits.most_bytes:
                    raise _LateError(f"sends more than {self._limits.most_bytes >> 20} MiB")
                yield chunk
        except TimeoutError as error:
            raise _LateError(f"has not sent its report in {self._limits.report:g} s") from error

    def _read(self, seconds: float) -> bytes:
        """Return what comes next; b"" at the end.

        Raises:
            TimeoutError: nothing comes in ``seconds``, or the query's time is over.

        """
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(min(seconds, left))
        return self._socket.recv(1 << 16)
