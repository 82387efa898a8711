"""Client of NCCL's RAS, which reports what the ranks have launched; each process serves it by TCP.

``ask_nccl`` blocks for up to 20 s, so it runs in a ``TimeLimitedChild``, never in the agent's loop.

The protocol is that of src/ras/client_support.cc in NCCL 2.24.3 to 2.30.7. The server answers each line
with a line. After ``STATUS`` it sends the report and closes the connection.

    CLIENT PROTOCOL 2       SERVER PROTOCOL 2, in all versions
    TIMEOUT 2               OK: seconds that NCCL waits for each hop to a silent process, 5 by default
    SET FORMAT json         OK since 2.28.7; before, "ERROR: Unknown command ..."
    STATUS                  the report
    VERBOSE STATUS          the report as text, with more details
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
"""Addresses to try: a stopped process does not answer, but another one has the same information."""

DEFAULT_ADDRESS = "localhost:28028"
"""Where NCCL listens without NCCL_RAS_ADDR."""

SECONDS_PER_HOP = 2
"""Value of ``TIMEOUT``: a report that lacks a silent process then takes 2 to 7 s."""

MAX_ANSWER_LENGTH = 4096
"""Bytes of an answer before the report."""

# NCCL 2.28.7 and 2.28.9 write this without the comma, so a report with a missing rank is not JSON.
_NO_COMMA = re.compile(rb'("nvml_dev": -?\d+)(\s+"status")')


class RasLimits(Struct, frozen=True):
    """Timeouts in seconds, and the size limit of a report."""

    silence: float = 0.5
    """For the connection, and for each line before the report."""
    between: float = 1.0
    """Pause between the first report and the second query."""
    seconds: float = 20.0
    """For all queries; NCCL gives up a report after 10 s, or earlier with ``SECONDS_PER_HOP``."""
    max_bytes: int = 64 << 20
    """Size of a report; 4,096 ranks in one communicator take 2.2 MB."""


DEFAULT_LIMITS = RasLimits()


class _NoAnswerError(Exception):
    """Why there is no report."""


def ras_addresses(workers: Iterable[WorkerPlan], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the RAS addresses of these workers, at most three; () if the user has disabled RAS.

    Args:
        workers: the workers of one program on this node, by local rank.
        environment: the environment that all of them share.

    """
    found: dict[str, None] = {}
    for worker in workers:
        own = {**environment, **worker.env}
        if is_ras_enabled(own):
            found[own.get(RAS_VARIABLE, DEFAULT_ADDRESS)] = None
    return tuple(found)[:MAX_ADDRESSES]


def ask_nccl(
    addresses: Sequence[str], world: NcclWorld, limits: RasLimits = DEFAULT_LIMITS
) -> NcclState:
    """Return the state of the job, from two reports of the first process that answers.

    Args:
        addresses: ``HOST:PORT`` or ``[IPV6]:PORT``, in the order in which they are tried.
        world: the ranks; ``pids`` are the workers of this node, which may have loaded libnccl.
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
        # A process with another NCCL may have taken the port meanwhile.
        return state_of_text(second) if isinstance(second, str) else compared(first, second, world)
    if not any(map(_maps_libnccl, world.pids)):
        # Jobs on other GPUs or on CPUs have no NCCL.
        return NcclState()
    why = "; ".join(reasons) or "NCCL_RAS_ENABLE switches that off"
    return NcclState((as_line(f"NCCL does not report what the ranks have launched: {why}"),))


def _maps_libnccl(pid: int) -> bool:
    """Return whether a process of this user has loaded libnccl; False if it has ended."""
    try:
        return "libnccl" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _report(address: str, until: float, limits: RasLimits) -> RasReport | str:
    """Return one report; as text if NCCL has no JSON.

    Raises:
        _NoAnswerError: there is no report.

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
            body = _read_to_end(nccl, until, limits.max_bytes)
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
    """Send a line; return the answering line."""
    stream.write(f"{line}\n".encode())
    answer = stream.readline(MAX_ANSWER_LENGTH)
    if not answer.endswith(b"\n"):
        raise _NoAnswerError("is not NCCL, or has ended")
    return as_line(answer.decode(errors="replace").strip())


def _read_to_end(nccl: socket.socket, until: float, most: int) -> bytes:
    """Read until the peer closes the connection."""
    body = bytearray()
    while len(body) <= most:
        nccl.settimeout(max(0.001, until - time.monotonic()))
        chunk = nccl.recv(1 << 16)
        if not chunk:
            return bytes(body)
        body += chunk
    raise _NoAnswerError(f"sends more than {most >> 20} MiB")
