"""Messages between a user's command and an agent: one request, one answer.

They are frames of a ``Channel``, after a handshake without a token.
"""

from typing import TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from clusterrun.bounds import Count, Line, Name, ProcessId, RunId, Seconds, Size
from clusterrun.planning.plan import NumberedProgram
from clusterrun.policy.queries import Answers, Query

AnswerT = TypeVar("AnswerT", "Description", Answers)


JOINING = "joining"
"""The ``state`` of an agent that waits for other nodes."""


class Describe(Struct, frozen=True, tag=True):
    """Asks for a ``Description`` of the agent's job."""


class Suspend(Struct, frozen=True, tag=True):
    """Requests a suspension of the job; the answer is a ``Description``."""


class StopJob(Struct, frozen=True, tag=True):
    """Requests the end of the job; the answer is a ``Description``."""

    at_once: bool
    """Without a grace period."""


Request = Describe | Suspend | StopJob | Query
"""The answer to a ``Query`` is ``Answers``, soon after the query's seconds."""


class Description(Struct, frozen=True, tag=True):
    """An agent and its job."""

    run_id: RunId
    host: Name
    pid: ProcessId
    node_rank: Count
    nodes: Size
    program: Line
    """Name of the script or executable."""
    ranks: Count = 0
    """On all nodes."""
    programs: tuple[NumberedProgram, ...] | UnsetType = UNSET
    """Set for a job with services once its nodes have joined."""
    attempt: Count = 0
    state: Name = "running"
    """Of this node: "running", "stopping", ...; "joining" while it waits for other nodes."""
    unsaved: Line = ""
    """Why this node's ranks can't be suspended; "" if they can, provided that they call
    ``suspend.requested``."""
    running_for: Seconds = 0.0
    """Since all nodes had joined; before that, since this agent began to wait."""


REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
