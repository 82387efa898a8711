"""Whether colours are seen where we print."""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.sources.this_process import ThisProcess


def shows_colours(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal shows colours, and its user wants them (no-color.org)."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def find_coloured(
    process: ThisProcess,
    variables: Mapping[str, str],
    cluster: Fact[str],
    log_dir: Fact[str | None],
) -> Fact[bool]:
    """Return whether workers may print colours: all that they print goes to a terminal alone."""
    # mpirun gives each task a terminal, and merges what they print.
    has_terminal = process.has_terminal and cluster.value != "openmpi"
    value = has_terminal and shows_colours(variables) and log_dir.value is None
    return Fact(value, "the terminal")
