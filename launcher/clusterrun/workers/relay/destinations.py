"""Where the output of workers comes out: agreed between the agent and its relay."""

from pathlib import Path

from msgspec import Struct

from clusterrun.domain.ranks import LocalRank


class Screen(Struct, frozen=True):
    """The launcher's own stdout and stderr (descriptors), and how workers' lines look there."""

    stdout: int
    stderr: int
    colour: bool
    """Colour the prefixes, on whichever of the two is a terminal."""
    prefix: bool
    """False for a job of one worker: its bytes are passed on as they come."""
    merged: bool = False
    """Others print to the same place: a terminal is none then, with neither colour nor live line."""
    progress_interval: float = 10.0
    """Seconds between lines that show a progress bar's state, where it is not drawn; 0: none."""


class Destination(Struct, frozen=True):
    """Where one stream of a worker goes: to the screen, to its log file, or to both."""

    log: Path | None
    shown: bool = True
    shown_without_log: bool = False
    """Not shown, but for what the log file can't take."""
    filtered: Path | None = None
    """Lines that are shown go here as well if they contain one of ``filters``."""
    filters: tuple[str, ...] = ()


class WorkerOutput(Struct, frozen=True):
    """Where the output of one worker comes from and goes to."""

    local_rank: LocalRank
    label: str
    """Its name in messages: "rank 3"."""
    prefix: str
    """Stands before its lines: "[rank 3] "."""
    stdout: int | None
    """The read end of its pipe; None where the stream is the terminal's own."""
    stderr: int | None
    stdout_to: Destination
    stderr_to: Destination
    error_file: Path | None
    """Its TORCHELASTIC_ERROR_FILE."""
