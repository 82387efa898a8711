"""A node that joins: where it has to, what it needs, and how it introduces itself to node 0."""

import os
import time
from binascii import crc32
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from clusterrun.bounds import as_line, as_name
from clusterrun.job.job import Job
from clusterrun.job.options import OPTIONS, Elasticity
from clusterrun.network.addresses import Interfaces, Resolve, all_addresses, own_interfaces
from clusterrun.network.resolver import resolves_for_others
from clusterrun.policy.joining import VERSION
from clusterrun.policy.messages import ARGUMENTS, MAX_KEPT_ATTEMPTS, Hello
from clusterrun.policy.settings import RendezvousSettings

DIGITS = 8
"""Length of a digest: a longer one would confirm a guess at a short secret beyond doubt."""

MAX_VALUE_CHARACTERS = 2000


def seconds_since_boot() -> float:
    """Return the time since the machine was started, in seconds, that in which it slept included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class JoinContext(NamedTuple):
    """What belongs to the agent and its machine, and how long the agent waits for an answer."""

    notice: Callable[[str], object]
    """Prints a line for the user, and adds the prefix."""
    renew_lease: Callable[[float | None], object] = lambda _: None
    """Takes the time at which workers are killed unless it is called again; None: never."""
    hold_connection: Callable[[int], object] = lambda _: None
    """Takes the connection to node 0, which is to end only when no worker is left."""
    lease_clock: Callable[[], float] = seconds_since_boot
    """That of leases: it goes on while the machine sleeps."""
    interfaces: Callable[[], Interfaces] = own_interfaces
    resolve: Resolve = all_addresses
    """May block: it runs in a process of its own."""
    resolves_for_others: Callable[[str, Callable[[], float], Interfaces], bool] = (
        resolves_for_others
    )
    """Takes the name of this host, the clock and ``interfaces``; asked once, when all have joined."""
    seconds_to_answer: float = 3.0
    """From connecting to node 0 to the end of the handshake; then the next port is tried."""


class JoiningNode(NamedTuple):
    """What a node needs to join."""

    settings: RendezvousSettings
    hello: Hello
    token: bytes
    """b"" if the job has none."""
    outside: JoinContext


def hello_of(job: Job, host: str, workers: int, version: str, versions: Mapping[str, str]) -> Hello:
    """Return the first message of this node to node 0.

    Args:
        job: as described on this node.
        host: the name of this host.
        workers: the number of workers of this node.
        version: of clusterrun on this node.
        versions: those of the interpreter and of torch, by name, as far as they are known.

    """
    minimum = f"{job.last_call.minimum}:" if job.last_call and not job.elasticity.spares else ""
    return Hello(
        identity=os.urandom(8).hex(),
        run_id=job.join.run_id if job.given.run_id else "",
        user_id=os.getuid(),
        host=as_name(host),
        pid=os.getpid(),
        rank=job.agent_rank,
        workers=workers,
        must={
            VERSION: bounded_value(version),
            "nnodes": f"{minimum}{job.agents - job.elasticity.spares}",
            **({"services": _digest(_described(job))} if job.services else {}),
            **{
                row.name: row.in_words(job.fact(row.name).value)
                for row in OPTIONS.values()
                if row.option.agree and (job.survives_node_loss or row.subject is not Elasticity)
            },
        },
        should={
            "script": bounded_value(job.script.name),
            ARGUMENTS: _digest(job.script.args),
            **{name: bounded_value(version) for name, version in versions.items()},
        },
        role=job.program.role,
        kept_attempts=min(job.kept_attempts, MAX_KEPT_ATTEMPTS),
    )


def _described(job: Job) -> list[str]:
    """Return what all nodes must know of services, wherever their job files lie."""
    services = [replace(each, where="", origins={}) for each in job.services]
    return [repr(services), str(job.main_nodes)]


def bounded_value(value: str) -> str:
    """Return a value of a hello, cut if it is long; different values stay different."""
    # A path is bytes, and need not be UTF-8.
    encoded = value.encode(errors="backslashreplace")
    text = as_line(encoded.decode())
    if len(text) <= MAX_VALUE_CHARACTERS:
        return text
    return f"{text[:MAX_VALUE_CHARACTERS]}... ({len(text)} characters, {crc32(encoded):08x})"


def _digest(arguments: Sequence[str]) -> str:
    """Return enough to distinguish arguments, and too little to find out a secret among them."""
    import hashlib

    # No argument contains a NUL.
    joined = "\0".join(arguments).encode(errors="surrogateescape")
    return hashlib.sha256(joined).hexdigest()[:DIGITS]
