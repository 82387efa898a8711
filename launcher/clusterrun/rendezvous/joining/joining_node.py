"""A node on its way into a job."""

import os
from binascii import crc32
from collections.abc import Mapping
from typing import NamedTuple

from clusterrun.coordination.messages import Hello
from clusterrun.domain.bounds import as_line, as_name
from clusterrun.rendezvous.joining.agent_hooks import AgentHooks
from clusterrun.rendezvous.joining.settings import Introduction, RendezvousSettings

LONGEST_VALUE = 2000


class Candidate(NamedTuple):
    """What it was told, what it says, how it proves that it belongs, and where it stands."""

    settings: RendezvousSettings
    hello: Hello
    token: bytes
    hooks: AgentHooks


def hello_of(introduction: Introduction, nodes: str) -> Hello:
    """Return an introduction as it travels, of a node that was told of ``nodes`` nodes, or MIN:MAX."""
    return Hello(
        identity=os.urandom(8).hex(),
        run_id=introduction.run_id,
        user_id=introduction.user_id,
        host=as_name(introduction.host),
        pid=introduction.pid,
        rank=introduction.rank,
        workers=introduction.workers,
        must=_bounded({"nnodes": nodes, **introduction.must}),
        should=_bounded(introduction.should),
        role=introduction.role,
    )


def _bounded(values: Mapping[str, str]) -> dict[str, str]:
    return {name: _bounded_value(value) for name, value in values.items()}


def _bounded_value(value: str) -> str:
    """Make a long value short in such a way that different ones stay different."""
    # A path is bytes, and need not be UTF-8.
    encoded = value.encode(errors="backslashreplace")
    text = as_line(encoded.decode())
    if len(text) <= LONGEST_VALUE:
        return text
    return f"{text[:LONGEST_VALUE]}... ({len(text)} characters, {crc32(encoded):08x})"
