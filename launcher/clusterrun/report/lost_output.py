"""The lines on output that was lost."""

from collections.abc import Sequence

from clusterrun.domain.lost_output import LostOutput


def describe_losses(losses: Sequence[LostOutput], exit_code: int | None) -> str:
    """Return the last line of a report: what was lost, and the exit code if that is its cause."""
    first = losses[0]
    what = f"{_bytes(sum(loss.size for loss in losses))} of {first.name}"
    if len(losses) > 1:
        what += f" and {len(losses) - 1} other{'s' if len(losses) > 2 else ''}"
    why = first.why or "not enough time at the end"
    code = "" if exit_code is None else f"exit code {exit_code}: "
    return f"clusterrun: {code}{what} could not be written: {why}"


def describe_silent_relay(how: str) -> str:
    """Return the line on the last lines of workers, which the relay may not have printed."""
    return f"clusterrun: its relay {how}: the last lines of workers may be missing"


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} byte{'s' if count > 1 else ''}"
    return f"{count / 1000:.0f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"
