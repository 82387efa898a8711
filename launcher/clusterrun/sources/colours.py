"""Whether workers may print colours."""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.sources.this_process import ThisProcess


def shows_colours(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal shows colours, and its user has not turned them off (no-color.org)."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def find_coloured(
    process: ThisProcess,
    variables: Mapping[str, str],
    cluster: Fact[str],
    log_dir: Fact[str | None],
) -> Fact[bool]:
    """Return whether workers may print colours: their output goes to a terminal only."""
    # mpirun gives each task a terminal, and merges their output.
    has_terminal = process.has_terminal and cluster.value != "openmpi"
    value = has_terminal and shows_colours(variables) and log_dir.value is None
    return Fact(value, "the terminal")
