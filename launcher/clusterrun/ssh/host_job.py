"""What a host is sent of a job, and what it answers."""

import os
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.job.sources import CommandLine
from clusterrun.policy.outcome import Report


class HostJob(Struct, frozen=True):
    """One host's part of a job: a command line and where it runs.

    Texts are bytes of the system, each as the character of its number: JSON has no other way for a
    path or a variable that is not UTF-8.
    """

    protocol: str
    """The version of clusterrun that has written it."""
    folder: str
    """Where the agent is started."""
    options: Mapping[str, tuple[tuple[str, str], ...]]
    """Texts of the command line's options by name, each with its origin."""
    words: tuple[str, ...]
    """The script and its arguments."""
    variables: Mapping[str, str]
    """Variables on top of the host's own."""
    heartbeat_timeout: float
    """Seconds of silence after which the connection is lost."""
    grace: float
    """Seconds for the agent to end after SIGTERM."""

    @property
    def line(self) -> CommandLine:
        """The command line of the agent."""
        options = {
            name: tuple(Fact(_from_bytes(text), origin) for text, origin in texts)
            for name, texts in self.options.items()
        }
        return CommandLine(options, tuple(map(_from_bytes, self.words)))

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
    report: Report | None
    """None: it has made none, as it was killed."""


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
        options={
            name: tuple((_to_bytes(text.value), text.origin) for text in texts)
            for name, texts in line.options.items()
        },
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


def _to_bytes(text: str) -> str:
    return os.fsencode(text).decode("latin-1")


def _from_bytes(text: str) -> str:
    return os.fsdecode(text.encode("latin-1"))
