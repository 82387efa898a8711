"""Where the output of workers goes, as the agent tells the relay."""

from pathlib import Path

from msgspec import Struct

from clusterrun.domain.ranks import LocalRank


class Screen(Struct, frozen=True):
    """The launcher's stdout and stderr (descriptors), and how workers' lines look there."""

    stdout: int
    stderr: int
    colour: bool
    """Colour the prefixes, on whichever of the two is a terminal."""
    prefix: bool
    """False for a job of one worker: its bytes are written as they come."""
    merged: bool = False
    """Other processes print to the same place: no colours and no live line, even on a terminal."""
    progress_interval: float = 10.0
    """Seconds between lines with a progress bar's state, where it is not drawn; 0: none."""


class Destination(Struct, frozen=True):
    """Where one stream of a worker goes: to the screen, to its log file, or to both."""

    log: Path | None
    shown: bool = True
    shown_without_log: bool = False
    """Shown only if the log file can't be written."""
    filtered: Path | None = None
    """Shown lines that contain one of ``filters`` go to this file, too."""
    filters: tuple[str, ...] = ()


class WorkerOutput(Struct, frozen=True):
    """The pipes of one worker, and where their output goes."""

    local_rank: LocalRank
    label: str
    """Its name in messages: "rank 3"."""
    prefix: str
    """What its lines begin with: "[rank 3] "."""
    stdout: int | None
    """The read end of its pipe; None where the stream is the terminal's own."""
    stderr: int | None
    stdout_to: Destination
    stderr_to: Destination
    error_file: Path | None
    """Its TORCHELASTIC_ERROR_FILE."""
