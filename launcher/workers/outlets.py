"""Where the output of workers comes out: agreed between the agent and its relay."""

from pathlib import Path

from msgspec import Struct

from launcher.domain.ranks import LocalRank


class Screen(Struct, frozen=True):
    """The launcher's own stdout and stderr (descriptors), and how workers' lines look there."""

    stdout: int
    stderr: int
    colour: bool
    """Colour the prefixes, on whichever of the two is a terminal."""
    prefix: bool
    """False for a job of one worker: its bytes are passed on as they come."""


class WorkerOutput(Struct, frozen=True):
    """Where the output of one worker comes from and goes to."""

    local_rank: LocalRank
    label: str
    """Stands in brackets before its lines, and in messages: "rank 3"."""
    stdout: int | None
    """The read end of its pipe; None where the stream is the terminal's own."""
    stderr: int | None
    stdout_log: Path | None
    stderr_log: Path | None
    error_file: Path | None
    """Its TORCHELASTIC_ERROR_FILE."""
