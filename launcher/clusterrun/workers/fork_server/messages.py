"""The messages between the agent and its two helper processes, the fork server and the relay.

``HelperChannel`` identifies a message type by its index in one of the tuples below; the unions are for the
type checker. Absent values are None, and fields are plain marshallable values, without enums and paths.
Workers are identified by their local ranks, and times are those of the monotonic clock. A message has no
answer unless one is named.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NamedTuple, Self
else:

    class NamedTuple(tuple):  # noqa: SLOT001 - fields are attributes of each
        """The part of ``typing.NamedTuple`` that is needed; importing ``typing`` takes 10 ms."""

        # Before Python 3.10, a type without fields inherits these annotations.
        __annotations__ = {}

        def __init_subclass__(cls) -> None:
            cls._fields = cls.__match_args__ = tuple(cls.__annotations__)

        def __new__(cls, *values: object, **named: object) -> Self:
            """Raise AttributeError for a missing field, TypeError for an unknown one."""
            named.update(zip(cls._fields, values))
            fields = [named.pop(it) if it in named else getattr(cls, it) for it in cls._fields]
            if named or len(values) > len(fields):
                raise TypeError(f"{cls.__name__} has the fields {cls._fields}: {values}, {named}")
            self = tuple.__new__(cls, fields)
            self.__dict__.update(zip(cls._fields, fields))
            return self


AGENT_FD = 3
"""The connection to the agent, in the fork server."""

STDERR_FD = 4
"""The agent's standard error; the server's own is a pipe to the agent until it is ready."""

# From the agent to the fork server.


class Prepare(NamedTuple):
    """Import the modules that the script imports first; the fields are those of ``Preparation``.

    If it is sent, it is the first message. The server answers with ``ImportBegins`` for each import, then
    ``Prepared``; until then the agent sends nothing else.
    """

    command: tuple[str, ...]
    preload: str | tuple[str, ...]
    must_fork: bool
    known_variables: Mapping[str, str]
    per_worker_variables: tuple[str, ...]
    workers: int
    cpus: list[int] | None
    has_gpus: bool
    only_first: tuple[int, str] | None


class StartWorker(NamedTuple):
    """Start a worker; its standard input, output and error are the three descriptors.

    The answer is ``Started``, ``StartFailed`` or ``EndedByLease``. After ``Started``, ``ScriptFailed`` may
    follow; ``WorkerExited``, ``WorkerKilled`` or ``EndedByLease`` is the last message about a worker.
    """

    local_rank: int
    command: tuple[str, ...]
    variables: Mapping[str, str]
    startup_folder: str | None
    """It is put first on PYTHONPATH; None: the program is not Python."""
    cpus: list[int] | None
    memory: tuple[str, list[int]] | None
    blocked_signals: Sequence[int]
    open_files: tuple[int, int]
    foreground_group: int | None
    """The process group that hands over the terminal; None: the worker gets no terminal."""


class SendSignal(NamedTuple):
    """Send a signal to workers, or to their process groups.

    ``except_failing``: not to workers whose script has failed.
    """

    local_ranks: Sequence[int]
    number: int
    group: bool
    except_failing: bool


class Forward(NamedTuple):
    """Send a signal to the workers that handle or ignore it; ``NotHandled`` lists the others."""

    number: int


class KillChildrenByEnvironment(NamedTuple):
    """Kill all processes with these variables in their environment, for a second at most."""

    variables: Mapping[str, str]


class WaitForChildren(NamedTuple):
    """Send ``NoChildren`` once no process that the workers have started is left."""


class ListChildren(NamedTuple):
    """Answer at once with ``ChildList``: the processes that the workers have left running."""


class SignalChildren(NamedTuple):
    """Signal all children, including orphans whose parents are ended by this signal."""

    number: int


class KillAll(NamedTuple):
    """Kill the workers and all processes that they have left; ``AllKilled`` answers within 5 s."""


class RenewLease(NamedTuple):
    """Kill everything and start no worker after ``until``, in seconds of CLOCK_BOOTTIME; None: never.

    Each message replaces the lease before.
    """

    until: float | None


class KeepConnection(NamedTuple):
    """Keep the descriptor, the agent's connection to node 0, open until no process of the job is left."""


class Ping(NamedTuple):
    """Answer with ``Pong`` at once."""


# From the fork server to the agent.


class Ready(NamedTuple):
    """The fork server is ready."""

    pid: int
    """Its own: the agent may know only its guard's."""
    refused: list[str]
    """What containment lacks: see ``kernel.refused_protections``."""


class ImportBegins(NamedTuple):
    """The import of this module begins."""

    module: str


class Prepared(NamedTuple):
    """The answer to ``Prepare``."""

    why: str | None
    """Why workers are executed; None: they are forked, and run the script in place."""
    must_warn: bool
    """The user must be told, as an import has failed."""
    costs_time: bool
    """Each worker imports something that could have been imported once."""
    must_be_replaced: bool = False
    """No worker can be started from this server, because imports have begun in it."""
    retry_first: int | None = None
    """How many of the imports a new server may repeat; None: none is needed."""
    loaded: Sequence[tuple[str, float]] = ()
    """Imported modules, each with the seconds that the import took."""
    left_to_workers: Sequence[tuple[str, str]] = ()
    """Modules that each worker imports itself, each with the reason."""
    not_preloaded: str | None = None
    """A slow module that each worker imports itself."""
    why_not_preloaded: str | None = None
    """The reason: a line of the script, as ``train.py:2 sets X before ...``, or what an import did."""
    preload_option_helps: bool = False
    """Whether ``--preload NAME`` imports it once."""


class Started(NamedTuple):
    """A worker has executed its program, or runs the script."""

    local_rank: int
    pid: int
    warning: str | None
    """How its binding differs from the plan."""
    at: float


class StartFailed(NamedTuple):
    """A step of a worker's start has failed."""

    local_rank: int
    step: str
    error: str


class ScriptFailed(NamedTuple):
    """A worker's script has failed with an exception, but its process still runs."""

    local_rank: int
    failed_at: float


class WorkerExited(NamedTuple):
    """A worker has exited, and was reaped ``at``; ``failed_at``: when its script failed, if it did."""

    local_rank: int
    code: int
    at: float
    failed_at: float | None


class WorkerKilled(NamedTuple):
    """A worker was killed by a signal; ``failure``: when its script had failed, and with which exit code."""

    local_rank: int
    number: int
    at: float
    failure: tuple[float, int] | None


class EndedByLease(NamedTuple):
    """A worker was killed, or not started, because the lease had expired."""

    local_rank: int
    at: float


class Stopped(NamedTuple):
    """A worker was stopped by a signal, such as that of Ctrl-Z."""


class NotHandled(NamedTuple):
    """The answer to ``Forward``: the workers that neither handle nor ignore this signal."""

    number: int
    local_ranks: list[int]


class SignalFromWorker(NamedTuple):
    """The fork server has received this signal, perhaps from a worker that signals its parent."""

    number: int
    at: float


class NoChildren(NamedTuple):
    """The answer to ``WaitForChildren``."""


class ChildList(NamedTuple):
    """The answer to ``ListChildren``: pid, name, and RANK in the environment of each process."""

    processes: list[tuple[int, str, int | None]]


class AllKilled(NamedTuple):
    """The answer to ``KillAll``: descriptions of the processes that SIGKILL has not ended."""

    survivors: list[str]


class Pong(NamedTuple):
    """The answer to ``Ping``."""


# From a starting worker to the fork server; also ``StartFailed``.


class BindingWarnings(NamedTuple):
    """How the binding of a worker differs from the plan."""

    cpus: str | None
    memory: str | None


if TYPE_CHECKING:
    _OfWorkers = StartWorker | SendSignal | Forward | RenewLease | KeepConnection
    _OfChildren = (
        KillChildrenByEnvironment | WaitForChildren | ListChildren | SignalChildren | KillAll
    )
    ToForkServer = Prepare | _OfWorkers | _OfChildren | Ping
    _OfWorker = Started | StartFailed | ScriptFailed | WorkerExited | WorkerKilled | EndedByLease
    _OfAll = Stopped | NotHandled | SignalFromWorker | NoChildren | ChildList | AllKilled
    FromRunning = _OfWorker | _OfAll
    FromForkServer = Ready | ImportBegins | Prepared | FromRunning | Pong
    FromWorker = BindingWarnings | StartFailed

TO_FORK_SERVER: tuple[type[ToForkServer], ...] = (
    *(Prepare, StartWorker, SendSignal, Forward, RenewLease, KeepConnection),
    *(KillChildrenByEnvironment, WaitForChildren, ListChildren, SignalChildren, KillAll, Ping),
)
FROM_FORK_SERVER: tuple[type[FromForkServer], ...] = (
    *(Ready, ImportBegins, Prepared, Started, StartFailed, ScriptFailed),
    *(WorkerExited, WorkerKilled, EndedByLease, Stopped, NotHandled, SignalFromWorker),
    *(NoChildren, ChildList, AllKilled, Pong),
)
FROM_WORKER: tuple[type[FromWorker], ...] = (BindingWarnings, StartFailed)

if __package__ != "fork_server":
    # The fork server needs none of these; to make the types would take it 0.4 ms.
    from typing import get_args

    # From the agent to the relay.

    class Open(NamedTuple):
        """Read the pipes of a worker: the descriptors, for the ``streams`` of the same order."""

        output: Mapping[str, object]
        """The fields of a ``WorkerOutput``, with paths as text."""
        streams: list[str]
        """``stdout`` or ``stderr``."""

    class DrainOutput(NamedTuple):
        """Read the rest of what an ended worker has printed; ``OutputDrained`` answers.

        Processes that it has left may print more later.
        """

        local_rank: int

    class PrintText(NamedTuple):
        """Print a text to standard error, between the workers' lines."""

        text: str

    class Append(NamedTuple):
        """Append a line to a file; ``top``: the user's log folder that contains it, if it is a log."""

        path: str
        line: str
        top: str | None = None

    class Link(NamedTuple):
        """Make a symbolic link, or replace one."""

        path: str
        target: str

    class RemoveAtEnd(NamedTuple):
        """Remove a socket of the agent when the relay ends, however the agent ends."""

        path: str

    class QueryLastLines(NamedTuple):
        """Answer with ``LastLines`` of the same number."""

        number: int

    class FlushOutput(NamedTuple):
        """Show everything printed so far, then answer with empty ``LastLines`` of the same number."""

        number: int

    class CaptureStacks(NamedTuple):
        """Take Python stacks out of the output of the next seconds.

        ``PrintedStacks`` of the same number answers.
        """

        number: int
        seconds: float

    class SkipStacks(NamedTuple):
        """Expect no stacks of these workers, because they were sent no signal."""

        local_ranks: list[int]

    class WatchOutput(NamedTuple):
        """Send ``Quiet`` once no worker has been active for so long; None: stop that."""

        seconds: float | None

    class Close(NamedTuple):
        """Write what is buffered, for so many seconds at most, answer with ``Closed``, and exit."""

        seconds: float

    # From the relay to the agent.

    class OutputDrained(NamedTuple):
        """The answer to ``DrainOutput``: the last lines of stderr, and TORCHELASTIC_ERROR_FILE, if any."""

        local_rank: int
        tail: str
        error_file: str | None

    class StdoutClosed(NamedTuple):
        """The reader of standard output is gone."""

    class Quiet(NamedTuple):
        """No worker has printed, started or ended for so long; None: after that, one has."""

        seconds: float | None

    class LastLines(NamedTuple):
        """The answer to ``QueryLastLines`` and ``FlushOutput``."""

        number: int
        lines: list[tuple[int, tuple[str, float, int]]]
        """Of each worker its last line, the line's age in seconds, and the number of lines."""

    class PrintedStacks(NamedTuple):
        """The answer to ``CaptureStacks``."""

        number: int
        stacks: list[tuple[int, str, bool]]
        """Of each worker its stack and True, or the reason why there is none and False."""
        shown: bool
        """They have appeared on the screen already."""

    class Closed(NamedTuple):
        """The answer to ``Close``: output that could not be written."""

        losses: list[tuple[str, int, str]]
        """Of each output its name, the bytes lost, and the reason."""

    _OfOutput = Open | DrainOutput | PrintText | WatchOutput | Close
    _OfFiles = Append | Link | RemoveAtEnd
    ToRelay = _OfOutput | _OfFiles | QueryLastLines | FlushOutput | CaptureStacks | SkipStacks
    FromRelay = OutputDrained | StdoutClosed | Quiet | LastLines | PrintedStacks | Closed
    TO_RELAY: tuple[type[ToRelay], ...] = get_args(ToRelay)
    FROM_RELAY: tuple[type[FromRelay], ...] = get_args(FromRelay)
