"""What an agent and the client that has called it over ssh say to each other.

    caller to agent    Call    which job to run, and where
                       Start   run it now: the agents of all hosts are ready
                       Signal  as if it had come by kill(2)
    agent to caller    Ready   the job can start here
                       Refused  it can't; an agent may also find that after its start
                       Output  lines that workers print
                       Notice  lines of the agent's own
                       Ended   the job is over
    both               Beat    a sign of life

Until its relay runs the agent writes, then the relay alone, and the agent again once the relay has
ended (``RelayClient.is_drained``): frames are never mixed.
"""

import math

import msgspec
from msgspec import Struct

from clusterrun import errors
from clusterrun.errors import InternalError, LauncherError
from clusterrun.network.channel import MessageT, TwoDescriptors, WaitingChannel, framed
from clusterrun.policy.outcome import Report


class Call(Struct, frozen=True, tag=True):
    """A job: a command line, and where it is typed. Names and texts are bytes, as the system has them."""

    argv: tuple[bytes, ...]
    """The words after "clusterrun"."""
    folder: bytes = b""
    """Where it is typed; b"": in the agent's own folder."""
    variables: dict[bytes, bytes] = {}
    """On top of the agent's own."""
    version: str = ""
    """The caller's version of clusterrun; "": it is the agent's own."""
    silence: float = 0.0
    """Seconds after which a caller without a sign of life is gone; 0: only its end counts."""


class Start(Struct, frozen=True, tag=True):
    """Run the job: all agents are ready."""


class Signal(Struct, frozen=True, tag=True):
    """A signal for the agent."""

    number: int


class Beat(Struct, frozen=True, tag=True):
    """A sign of life."""


class Ready(Struct, frozen=True, tag=True):
    """The job can start here."""


class Refused(Struct, frozen=True, tag=True):
    """The job could not be run: a ``LauncherError``."""

    kind: str
    """The name of its class."""
    message: str
    hint: str = ""

    @property
    def error(self) -> LauncherError:
        """The error, as the agent has raised it."""
        found: type[LauncherError] = getattr(errors, self.kind, InternalError)
        return found(self.message, self.hint)


class Output(Struct, frozen=True, tag=True):
    """Whole lines that workers have printed; a line that is too long comes in pieces."""

    stream: int
    """1: standard output, 2: standard error."""
    data: bytes


class Notice(Struct, frozen=True, tag=True):
    """Lines of the agent's own, the last one without its end."""

    text: str


class Ended(Struct, frozen=True, tag=True):
    """The job is over; this is the agent's last message."""

    code: int
    """Its exit code."""
    report: Report
    unprinted: str = ""
    """What the agent could not print, in place of the report."""


FromCaller = Call | Start | Signal | Beat
FromAgent = Ready | Refused | Output | Notice | Beat | Ended

FROM_CALLER: msgspec.msgpack.Decoder[FromCaller] = msgspec.msgpack.Decoder(FromCaller)
FROM_AGENT: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)

LONGEST = 1 << 28
"""Bytes of a message: a report has the last lines of each worker of a node."""


class CallerChannel(WaitingChannel[MessageT]):
    """One end of the connection: the caller's reads ``FROM_AGENT``.

    Args:
        decoder: of the messages that are read.
        reading: a pipe or a socket.
        writing: another one, or the same.
        begun: what was read from it before.

    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[MessageT],
        reading: int,
        writing: int,
        begun: bytes = b"",
    ) -> None:
        super().__init__(decoder, TwoDescriptors(reading, writing))
        self.longest, self.most_unsent = LONGEST, math.inf
        self._incoming += begun


def own_version() -> str:
    """Return the version of clusterrun that is installed here, as a ``Call`` has it."""
    from importlib.metadata import version

    return version("clusterrun")


def frame(message: FromAgent) -> bytes:
    """Return a message as it is sent, for the relay, which writes by itself."""
    return framed(msgspec.msgpack.encode(message))
