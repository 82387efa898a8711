"""What a node needs to join its job, and its first message to node 0."""

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

DIGEST_CHARACTERS = 8
"""Few: a longer digest would let a reader confirm a guess at a short secret among the arguments."""

MAX_VALUE_CHARACTERS = 2000


def seconds_since_boot() -> float:
    """Return the seconds since the machine booted, including the time it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class JoinContext(NamedTuple):
    """How a joining node reaches its agent and its machine."""

    notice: Callable[[str], object]
    """Prints a line for the user, and adds the prefix."""
    renew_lease: Callable[[float | None], object] = lambda _: None
    """Takes the time at which workers are killed unless it is called again; None: never."""
    hold_connection: Callable[[int], object] = lambda _: None
    """Takes the descriptor of the connection to node 0, which stays open until no worker is left."""
    lease_clock: Callable[[], float] = seconds_since_boot
    """Keeps counting while the machine is suspended."""
    interfaces: Callable[[], Interfaces] = own_interfaces
    resolve: Resolve = all_addresses
    """May block: it is called in a child process."""
    resolves_for_others: Callable[[str, Callable[[], float], Interfaces], bool] = (
        resolves_for_others
    )
    """Takes this host's name, the clock and the interfaces; called once, when all nodes have joined."""
    seconds_to_answer: float = 3.0
    """For connecting to node 0 and the handshake; after that the next port is tried."""


class JoiningNode(NamedTuple):
    """What a node needs to join."""

    settings: RendezvousSettings
    hello: Hello
    token: bytes
    """b"" if the job has none."""
    context: JoinContext


def hello_of(job: Job, host: str, workers: int, version: str, versions: Mapping[str, str]) -> Hello:
    """Return this node's first message to node 0.

    Args:
        job: the job as resolved on this node.
        host: the name of this host.
        workers: the number of workers on this node.
        version: the version of clusterrun on this node.
        versions: the known ones among those of "python" and "torch".

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
            **({"services": _digest(_services_text(job))} if job.services else {}),
            **{
                row.name: row.value_text(job.setting(row.name).value)
                for row in OPTIONS.values()
                if row.option.same_on_all_nodes
                and (job.survives_node_loss or row.subject is not Elasticity)
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


def _services_text(job: Job) -> list[str]:
    """Return the options of services, which must be equal on all nodes, without their origins."""
    services = [replace(each, where="", origins={}) for each in job.services]
    return [repr(services), str(job.main_nodes)]


def bounded_value(value: str) -> str:
    """Return a value for a ``Hello``; a long one is cut, but different values stay different."""
    # A path consists of bytes and may not be valid UTF-8.
    encoded = value.encode(errors="backslashreplace")
    text = as_line(encoded.decode())
    if len(text) <= MAX_VALUE_CHARACTERS:
        return text
    return f"{text[:MAX_VALUE_CHARACTERS]}... ({len(text)} characters, {crc32(encoded):08x})"


def _digest(arguments: Sequence[str]) -> str:
    """Return a digest that distinguishes arguments but does not reveal a secret among them."""
    import hashlib

    # No argument contains a NUL.
    joined = "\0".join(arguments).encode(errors="surrogateescape")
    return hashlib.sha256(joined).hexdigest()[:DIGEST_CHARACTERS]
