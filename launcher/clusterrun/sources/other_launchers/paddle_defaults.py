"""Defaults of a job for Paddle that differ from those of other jobs."""

from collections.abc import Mapping, Sequence

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.variables import Variables
from clusterrun.sources.options.rows.logs import LOG_DIR, WORKERLOG
from clusterrun.sources.options.rows.meeting import BASE_PORT
from clusterrun.sources.settings import Settings, find


def paddles_own(
    sources: Sequence[Settings], environ: Mapping[str, str], cluster: Fact[str]
) -> dict[str, Fact[object]]:
    """Return values by the names of their options; ``cluster`` is their origin."""
    own: dict[str, Fact[object]] = {}
    port = Variables(environ).number("PADDLE_PORT", "PADDLE_START_PORT")
    if port and find(BASE_PORT, sources) is None:
        own[BASE_PORT.name] = Fact(port.value, port.origin)
    if find(LOG_DIR, sources) and find(WORKERLOG, sources) is None:
        own[WORKERLOG.name] = Fact(value=True, origin=cluster.origin)
    return own
