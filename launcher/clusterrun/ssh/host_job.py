"""What a host is sent of a job, and what it answers."""

import os
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from clusterrun.sources.settings import CommandLine, FlagValue


class HostJob(Struct, frozen=True):
    """One host's part of a job: a command line and where it runs.

    Texts are bytes of the system, each as the character of its number: JSON has no other way for a
    path or a variable that is not UTF-8.
    """

    protocol: str
    """The version of clusterrun that has written it."""
    folder: str
    flags: Mapping[str, FlagValue]
    words: tuple[str, ...]
    variables: Mapping[str, str]
    """Variables on top of the host's own."""
    heartbeat_timeout: float
    """Seconds of silence after which the connection is lost."""
    grace: float
    """Seconds for the agent to end after SIGTERM."""

    @property
    def line(self) -> CommandLine:
        """The command line of the agent."""
        flags = {name: _each(value, _from_bytes) for name, value in self.flags.items()}
        return CommandLine(flags, tuple(map(_from_bytes, self.words)))

    def on_top_of(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the agent on a host with its ``own`` one."""
        ours = {_from_bytes(name): _from_bytes(text) for name, text in self.variables.items()}
        return {**own, **ours}

    @property
    def path(self) -> str:
        """The folder, as the system has it."""
        return _from_bytes(self.folder)


class Refusal(Struct, frozen=True):
    """Why a job cannot start on a host, as an error of the launcher has it."""

    message: str
    hint: str = ""


class AgentEnd(Struct, frozen=True):
    """How an agent ended."""

    code: int
    """Its exit code; 128 + N for signal N."""
    report: str
    """The text at the end of the job; "" if there is none."""


def host_job(
    line: CommandLine,
    folder: str,
    variables: Mapping[str, str],
    heartbeat_timeout: float,
    grace: float,
) -> HostJob:
    """Return the message for a host."""
    return HostJob(
        protocol=own_version(),
        folder=_to_bytes(folder),
        flags={name: _each(value, _to_bytes) for name, value in line.flags.items()},
        words=tuple(map(_to_bytes, line.words)),
        variables={_to_bytes(name): _to_bytes(text) for name, text in variables.items()},
        heartbeat_timeout=heartbeat_timeout,
        grace=grace,
    )


def own_version() -> str:
    from importlib.metadata import version

    return version("clusterrun")


def encode(message: Struct) -> bytes:
    return msgspec.json.encode(message)


def _each(value: FlagValue, change: Callable[[str], str]) -> FlagValue:
    match value:
        case bool():
            return value
        case str():
            return change(value)
        case _:
            return tuple(map(change, value))


def _to_bytes(text: str) -> str:
    return os.fsencode(text).decode("latin-1")


def _from_bytes(text: str) -> str:
    return os.fsdecode(text.encode("latin-1"))
