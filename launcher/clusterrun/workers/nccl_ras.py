"""Asks NCCL what the ranks have launched: its RAS, which a thread of each process serves by TCP.

``ask_nccl`` waits, up to 20 s: it is to run in an ``TimeLimitedChild``, never in the agent's loop.

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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from clusterrun.bounds import as_line
from clusterrun.job.nested_launches import RAS_VARIABLE
from clusterrun.planning.plan import WorkerPlan
from clusterrun.planning.variables import is_ras_enabled
from clusterrun.policy.nccl import NcclState, NcclWorld, RasReport, compared, state_of_text

MAX_ADDRESSES = 3
"""A process that is stopped does not answer, and another one knows the same."""

DEFAULT_ADDRESS = "localhost:28028"
"""Where NCCL listens without NCCL_RAS_ADDR."""

SECONDS_PER_HOP = 2
"""For ``TIMEOUT``: a report without a silent process then comes within 2 to 7 s."""

LONGEST_LINE_OF_SERVER = 4096
"""Bytes."""

# NCCL 2.28.7 and 2.28.9 write this without the comma, so a report with a missing rank is not JSON.
_NO_COMMA = re.compile(rb'("nvml_dev": -?\d+)(\s+"status")')


class RasLimits(Struct, frozen=True):
    """How long NCCL is waited for, in seconds, and how much of its answer is read."""

    silence: float = 0.5
    """Until it accepts the connection, and for each line before the report."""
    between: float = 1.0
    """From the first report to the second query."""
    seconds: float = 20.0
    """For all; NCCL itself gives up a report after 10 s, or earlier with ``SECONDS_PER_HOP``."""
    most_bytes: int = 64 << 20
    """Of a report; 4,096 ranks in one communicator take 2.2 MB."""


USUAL = RasLimits()


class _NoAnswerError(Exception):
    """Why there is no report."""


def ras_addresses(workers: Iterable[WorkerPlan], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return where to ask the NCCL of these workers, the first three; () if the user has switched it off.

    Args:
        workers: those of one program that run on this node, by local rank.
        environment: what all of them have.

    """
    found: dict[str, None] = {}
    for worker in workers:
        own = {**environment, **worker.env}
        if is_ras_enabled(own):
            found[own.get(RAS_VARIABLE, DEFAULT_ADDRESS)] = None
    return tuple(found)[:MAX_ADDRESSES]


def ask_nccl(addresses: Sequence[str], world: NcclWorld, limits: RasLimits = USUAL) -> NcclState:
    """Return what the NCCL of one of these processes knows of the job, from two reports.

    Args:
        addresses: ``HOST:PORT`` or ``[IPV6]:PORT``; the next one is asked if one does not answer.
        world: whose ``pids`` are the workers of this node, which may have loaded libnccl.
        limits: for tests.

    """
    until = time.monotonic() + limits.seconds
    reasons = []
    for address in addresses[:MAX_ADDRESSES]:
        try:
            first = _report(address, until, limits)
            if isinstance(first, str):
                return state_of_text(first)
            time.sleep(limits.between)
            second = _report(address, until, limits)
        except _NoAnswerError as error:
            reasons.append(f"{address} {error}")
            continue
        # Another process may have got the port meanwhile.
        return state_of_text(second) if isinstance(second, str) else compared(first, second, world)
    if not any(map(_maps_libnccl, world.pids)):
        # Most jobs that are not for NVIDIA GPUs have no NCCL.
        return NcclState()
    why = "; ".join(reasons) or "NCCL_RAS_ENABLE switches that off"
    return NcclState((as_line(f"NCCL does not report what the ranks have launched: {why}"),))


def _maps_libnccl(pid: int) -> bool:
    """Return whether a process of this user has loaded NCCL's library; False if it has ended."""
    try:
        return "libnccl" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _report(address: str, until: float, limits: RasLimits) -> RasReport | str:
    """Return the answer to one query: text, if NCCL has no JSON.

    Raises:
        _NoAnswerError: there is none.

    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise _NoAnswerError("is not an address like 127.0.0.1:28028")
    where = host.strip("[]") or "localhost", int(port)
    try:
        with (
            socket.create_connection(where, limits.silence) as nccl,
            nccl.makefile("rwb", buffering=0) as stream,
        ):
            hello = _ask(stream, "CLIENT PROTOCOL 2")
            if not hello.upper().startswith("SERVER PROTOCOL "):
                raise _NoAnswerError(f"is not NCCL: {hello[:60]!r}")
            _ask(stream, f"TIMEOUT {SECONDS_PER_HOP}")
            is_json = _ask(stream, "SET FORMAT json") == "OK"
            nccl.sendall(b"STATUS\n" if is_json else b"VERBOSE STATUS\n")
            body = _rest(nccl, until, limits.most_bytes)
    except TimeoutError as error:
        raise _NoAnswerError("does not answer in time") from error
    except OSError as error:
        raise _NoAnswerError(f"does not answer: {error.strerror or error}") from error
    if not is_json:
        return body.decode(errors="replace")
    try:
        return msgspec.json.decode(_NO_COMMA.sub(rb"\1,\2", body), type=RasReport)
    except msgspec.MsgspecError as error:
        raise _NoAnswerError("has sent an incomplete or unexpected report") from error


def _ask(stream: socket.SocketIO, line: str) -> str:
    """Send a line; return the one that answers it."""
    stream.write(f"{line}\n".encode())
    answer = stream.readline(LONGEST_LINE_OF_SERVER)
    if not answer.endswith(b"\n"):
        raise _NoAnswerError("is not NCCL, or has ended")
    return as_line(answer.decode(errors="replace").strip())


def _rest(nccl: socket.socket, until: float, most: int) -> bytes:
    """Return all that comes until the connection is closed."""
    body = bytearray()
    while len(body) <= most:
        nccl.settimeout(max(0.001, until - time.monotonic()))
        chunk = nccl.recv(1 << 16)
        if not chunk:
            return bytes(body)
        body += chunk
    raise _NoAnswerError(f"sends more than {most >> 20} MiB")
