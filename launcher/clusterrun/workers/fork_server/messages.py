"""What the agent sends its two helper processes, the fork server and the relay, and what they send it.

A union is for the type checker; the tuple of the same types is for ``HelperChannel``: the place of a type
is its number. What is not there is None; numbers and texts are plain ones, no enums and no paths. Workers
are named by their local ranks; times are by the monotonic clock. Where no answer is named, there is none.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NamedTuple, Self
else:

    class NamedTuple(tuple):  # noqa: SLOT001 - fields are attributes of each
        """What is needed of typing.NamedTuple, whose import takes each start of a fork server 10 ms."""

        # Before Python 3.10, a type without fields has those of this one.
        __annotations__ = {}

        def __init_subclass__(cls) -> None:
            cls._fields = cls.__match_args__ = tuple(cls.__annotations__)

        def __new__(cls, *values: object, **named: object) -> Self:
            """Raise AttributeError for a field that is missing, TypeError for one that is unknown."""
            named.update(zip(cls._fields, values))
            fields = [named.pop(it) if it in named else getattr(cls, it) for it in cls._fields]
            if named or len(values) > len(fields):
                raise TypeError(f"{cls.__name__} has the fields {cls._fields}: {values}, {named}")
            self = tuple.__new__(cls, fields)
            self.__dict__.update(zip(cls._fields, fields))
            return self


# From the agent to the fork server.


class Prepare(NamedTuple):
    """Import what the script imports first: its fields are those of the agent's ``Preparation``.

    It is the first message, if it is sent. ``ImportBegins`` follows for each import, then ``Prepared``:
    until then the agent sends nothing else.
    """

    command: tuple[str, ...]
    preload: str | tuple[str, ...]
    must_fork: bool
    known_variables: Mapping[str, str]
    per_worker_variables: tuple[str, ...]
    workers: int
    cpus: list[int] | None
    has_gpus: bool
    most: tuple[int, str] | None


class StartWorker(NamedTuple):
    """Start a worker, whose standard input, output and error are the descriptors.

    ``Started``, ``StartFailed`` or ``EndedByLease`` answers. After ``Started``, ``ScriptFailed`` may come,
    and ``WorkerExited``, ``WorkerKilled`` or ``EndedByLease`` comes at the end.
    """

    local_rank: int
    command: tuple[str, ...]
    variables: Mapping[str, str]
    startup_folder: str | None
    """To be put in front of PYTHONPATH; None: the program is not Python."""
    cpus: list[int] | None
    memory: tuple[str, list[int]] | None
    blocked_signals: Sequence[int]
    open_files: tuple[int, int]
    foreground_group: int | None
    """The group that hands over the terminal; None: the worker gets none."""


class SendSignal(NamedTuple):
    """Send a signal to workers, or to their groups; ``except_failing``: not where the script has failed."""

    local_ranks: Sequence[int]
    number: int
    group: bool
    except_failing: bool


class Forward(NamedTuple):
    """Send a signal to the workers that handle or ignore it; ``NotHandled`` names the others."""

    number: int


class KillChildrenByEnvironment(NamedTuple):
    """Kill all children with these variables in their environment, for a second at most."""

    variables: Mapping[str, str]


class WaitForChildren(NamedTuple):
    """Send ``NoChildren`` once nothing runs any more that the workers have started."""


class ListChildren(NamedTuple):
    """Name what the workers have left running: ``Children`` answers at once."""


class SignalChildren(NamedTuple):
    """Signal all children, also those that become children because their parents end of it."""

    number: int


class KillAll(NamedTuple):
    """Kill the workers and all that they have left: ``AllKilled`` answers within 5 s."""


class RenewLease(NamedTuple):
    """Kill all, and start no worker, from that time of CLOCK_BOOTTIME on; None: until another lease comes."""

    until: float | None


class KeepConnection(NamedTuple):
    """Hold the agent's connection to node 0, the descriptor, until nothing of the job is left."""


class Ping(NamedTuple):
    """Answer with ``Pong`` at once."""


# From the fork server to the agent.


class Ready(NamedTuple):
    """The fork server serves; its pid, as the agent may have executed its guard; what the kernel refuses it."""

    pid: int
    refused: list[str]


class ImportBegins(NamedTuple):
    """This module is imported now."""

    module: str


class Prepared(NamedTuple):
    """The answer to ``Prepare``."""

    why: str | None
    """Why workers are executed; None: they are forked, and run the script in place."""
    complaint: bool
    """An import failed, which the user has to know."""
    costs_time: bool
    """Each worker imports by itself what could have been imported once."""
    must_be_replaced: bool = False
    """Imports have begun, after which no worker is started from there."""
    again: int | None = None
    """The number of imports that another process may repeat; None: none."""
    loaded: Sequence[tuple[str, float]] = ()
    """Imported modules, each with the seconds that the import took."""
    left_out: Sequence[tuple[str, str]] = ()
    """Modules that each worker imports itself, each with the reason."""
    not_preloaded: str | None = None
    """A module that takes time and that each worker imports itself."""
    why_not_preloaded: str | None = None
    """The reason: a line of the script, as ``train.py:2 sets X before ...``, or what an import did."""
    preload_option_helps: bool = False
    """Whether ``--preload NAME`` imports it once all the same."""


class Started(NamedTuple):
    """A worker has executed its program, or runs the script; ``remark``: how its binding is not as planned."""

    local_rank: int
    pid: int
    remark: str | None
    at: float


class StartFailed(NamedTuple):
    """A step of a worker's start has failed."""

    local_rank: int
    step: str
    error: str


class ScriptFailed(NamedTuple):
    """An exception has left a worker's script at that time, and its process still runs."""

    local_rank: int
    failed_at: float


class WorkerExited(NamedTuple):
    """A worker has exited, and was reaped ``at``; ``failed_at``: when an exception left its script."""

    local_rank: int
    code: int
    at: float
    failed_at: float | None


class WorkerKilled(NamedTuple):
    """A worker was killed by a signal; ``failure``: when an exception left its script, and its exit code."""

    local_rank: int
    number: int
    at: float
    failure: tuple[float, int] | None


class EndedByLease(NamedTuple):
    """A worker was killed, or not started, because the lease was over."""

    local_rank: int
    at: float


class Stopped(NamedTuple):
    """A worker was stopped by a signal, as by Ctrl-Z."""


class NotHandled(NamedTuple):
    """The answer to ``Forward``: workers that have no handler for this signal."""

    number: int
    local_ranks: list[int]


class SignalFromWorker(NamedTuple):
    """A process has sent this signal to the fork server, as workers send it to their parent."""

    number: int
    at: float


class NoChildren(NamedTuple):
    """The answer to ``WaitForChildren``."""


class Children(NamedTuple):
    """The answer to ``ListChildren``: of each its pid, its name, and RANK of its environment."""

    processes: list[tuple[int, str, int | None]]


class AllKilled(NamedTuple):
    """The answer to ``KillAll``: the processes, in words, that SIGKILL has not ended."""

    survivors: list[str]


class Pong(NamedTuple):
    """The answer to ``Ping``."""


class Bound(NamedTuple):
    """What a starting worker sends the fork server: how its binding differs from the plan."""

    cpus: str | None
    memory: str | None


if TYPE_CHECKING:
    _OfWorkers = StartWorker | SendSignal | Forward | RenewLease | KeepConnection
    _OfChildren = (
        KillChildrenByEnvironment | WaitForChildren | ListChildren | SignalChildren | KillAll
    )
    ToForkServer = Prepare | _OfWorkers | _OfChildren | Ping
    _OfWorker = Started | StartFailed | ScriptFailed | WorkerExited | WorkerKilled | EndedByLease
    _OfAll = Stopped | NotHandled | SignalFromWorker | NoChildren | Children | AllKilled
    FromRunning = _OfWorker | _OfAll
    FromForkServer = Ready | ImportBegins | Prepared | FromRunning | Pong
    FromWorker = Bound | StartFailed

TO_FORK_SERVER: tuple[type[ToForkServer], ...] = (
    *(Prepare, StartWorker, SendSignal, Forward, RenewLease, KeepConnection),
    *(KillChildrenByEnvironment, WaitForChildren, ListChildren, SignalChildren, KillAll, Ping),
)
FROM_FORK_SERVER: tuple[type[FromForkServer], ...] = (
    *(Ready, ImportBegins, Prepared, Started, StartFailed, ScriptFailed),
    *(WorkerExited, WorkerKilled, EndedByLease, Stopped, NotHandled, SignalFromWorker),
    *(NoChildren, Children, AllKilled, Pong),
)
FROM_WORKER: tuple[type[FromWorker], ...] = (Bound, StartFailed)

if __package__ != "fork_server":
    # The fork server needs none of these, and so many types would take its start 0.4 ms.
    from typing import get_args

    # From the agent to the relay.

    class Open(NamedTuple):
        """Read a worker's pipes, the descriptors, each one's name in ``streams``: ``stdout`` or ``stderr``."""

        output: Mapping[str, object]
        """The fields of a ``WorkerOutput``, paths as text."""
        streams: list[str]

    class DrainOutput(NamedTuple):
        """Read what an ended worker has printed: ``OutputDrained`` answers. What it has left may print on."""

        local_rank: int

    class Say(NamedTuple):
        """Print a text to standard error, between the workers' lines."""

        text: str

    class Append(NamedTuple):
        """Append a line to a file; ``top``: it is a log file, below this folder of the user's."""

        path: str
        line: str
        top: str | None = None

    class Link(NamedTuple):
        """Make a symbolic link, in place of another link."""

        path: str
        target: str

    class RemoveAtEnd(NamedTuple):
        """Remove a socket of the agent's at the end of the relay, however the agent ends."""

        path: str

    class QueryLastLines(NamedTuple):
        """Report each worker's last line: ``LastLines`` with this number answers."""

        number: int

    class Show(NamedTuple):
        """Show what has been printed by now: then ``LastLines`` with this number, and no line, answers."""

        number: int

    class CaptureStacks(NamedTuple):
        """Take Python's stacks out of what workers print so soon: ``PrintedStacks`` with this number answers."""

        number: int
        seconds: float

    class SkipStacks(NamedTuple):
        """Expect no stacks of these workers, which got no signal."""

        local_ranks: list[int]

    class WatchOutput(NamedTuple):
        """Send ``Quiet`` when no worker has been active for so long from now on; None: don't."""

        seconds: float | None

    class Close(NamedTuple):
        """Write what is held, for so many seconds at most, answer with ``Closed``, and end."""

        seconds: float

    # From the relay to the agent.

    class OutputDrained(NamedTuple):
        """The answer to ``DrainOutput``: the end of standard error, and the TORCHELASTIC_ERROR_FILE, if any."""

        local_rank: int
        tail: str
        error_file: str | None

    class StdoutClosed(NamedTuple):
        """The reader of standard output is gone."""

    class Quiet(NamedTuple):
        """No worker has printed, started or ended for so long; None: one has now, after that."""

        seconds: float | None

    class LastLines(NamedTuple):
        """The answer to ``QueryLastLines``, or ``Show``: of each worker last line, its age, number of lines."""

        number: int
        lines: list[tuple[int, tuple[str, float, int]]]

    class PrintedStacks(NamedTuple):
        """The answer to ``CaptureStacks``: of each worker the stack, or why there is none; whether there is one.

        ``shown``: they have appeared on the screen already.
        """

        number: int
        stacks: list[tuple[int, str, bool]]
        shown: bool

    class Closed(NamedTuple):
        """The answer to ``Close``: of each output what could not be written: its name, bytes, and why."""

        losses: list[tuple[str, int, str]]

    _OfOutput = Open | DrainOutput | Say | WatchOutput | Close
    _OfFiles = Append | Link | RemoveAtEnd
    ToRelay = _OfOutput | _OfFiles | QueryLastLines | Show | CaptureStacks | SkipStacks
    FromRelay = OutputDrained | StdoutClosed | Quiet | LastLines | PrintedStacks | Closed
    TO_RELAY: tuple[type[ToRelay], ...] = get_args(ToRelay)
    FROM_RELAY: tuple[type[FromRelay], ...] = get_args(FromRelay)
