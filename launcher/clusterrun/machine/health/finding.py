"""What a check has found."""

from enum import Enum

from msgspec import Struct


class Level(Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """A job may run, slowly or not in all circumstances."""
    FAILURE = "failure"
    """A usual job fails."""


class Finding(Struct, frozen=True):
    """One line of the table."""

    level: Level
    what: str
    """What was looked at: "shared memory"."""
    found: str
    """"64 MiB, 64 MiB free"."""
    advice: str = ""
    """What to do; "" if it is well."""


class Health(Struct, frozen=True):
    """All findings of a machine, as ``clusterrun doctor --json`` prints them."""

    host: str
    findings: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.level is Level.FAILURE)


def well(what: str, found: str) -> Finding:
    return Finding(Level.OK, what, found)


def warning(what: str, found: str, advice: str) -> Finding:
    return Finding(Level.WARNING, what, found, advice)


def failure(what: str, found: str, advice: str) -> Finding:
    return Finding(Level.FAILURE, what, found, advice)
