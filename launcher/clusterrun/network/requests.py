"""What the commands of a user and an agent send each other: one request, one answer.

Both are frames of a ``Channel``, after a handshake without a token.
"""

from typing import TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from clusterrun.bounds import Count, Line, Name, ProcessId, RunId, Seconds, Size
from clusterrun.planning.plan import NumberedProgram
from clusterrun.policy.queries import Answers, Query

AnswerT = TypeVar("AnswerT", "Description", Answers)


JOINING = "joining"
"""The state of an agent that waits for the other nodes."""


class Describe(Struct, frozen=True, tag=True):
    """Asks which job the agent is part of; a ``Description`` answers."""


class Suspend(Struct, frozen=True, tag=True):
    """Asks for a suspension of the job; a ``Description`` answers once it is asked for."""


class StopJob(Struct, frozen=True, tag=True):
    """Asks for the end of the job; a ``Description`` answers once it is asked for."""

    at_once: bool
    """Without a grace period."""


Request = Describe | Suspend | StopJob | Query
"""``Answers`` come to a ``Query``, soon after its seconds."""


class Description(Struct, frozen=True, tag=True):
    """The job of an agent."""

    run_id: RunId
    host: Name
    pid: ProcessId
    node_rank: Count
    nodes: Size
    program: Line
    """The name of what it runs."""
    ranks: Count = 0
    """Of all nodes."""
    programs: tuple[NumberedProgram, ...] | UnsetType = UNSET
    """Of a job with services, once its nodes have joined."""
    attempt: Count = 0
    state: Name = "running"
    """Of this node: "running", "stopping", ...; "joining": it waits for other nodes."""
    unsaved: Line = ""
    """Why this node's ranks can't be suspended; "": they can, if they call ``suspend.requested``."""
    running_for: Seconds = 0.0
    """Since all nodes had joined; while they join, since this agent began to wait."""


REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
