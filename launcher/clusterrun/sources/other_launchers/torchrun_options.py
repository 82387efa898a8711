"""torchrun's own options, translated into those of clusterrun."""

from collections.abc import Iterator, Mapping, Sequence

from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.options.option import Option
from clusterrun.sources.options.rows.joining import LAST_CALL_TIMEOUT, RDZV_TIMEOUT
from clusterrun.sources.options.rows.meeting import (
    LOCAL_ADDR,
    MASTER_ADDR,
    MASTER_PORT,
    RDZV_ENDPOINT,
)
from clusterrun.sources.options.rows.program import PASS_LOCAL_RANK
from clusterrun.sources.options.rows.torchrun import (
    DEFAULT_LOGS_SPECS,
    EVENT_LOG_HANDLER,
    LOGS_SPECS,
    MONITOR_INTERVAL,
    RDZV_BACKEND,
    RDZV_CONF,
    STANDALONE,
    USE_ENV,
)
from clusterrun.sources.options.rows.workers import NNODES, NODE_RANK
from clusterrun.sources.other_launchers.torchrun_defaults import (
    DEFAULTS,
    TORCHRUN,
    settings_from_torch,
)
from clusterrun.sources.settings import Settings, find, value_of

CONF_KEYS: Mapping[str, Option[float]] = {
    "timeout": RDZV_TIMEOUT,
    "join_timeout": RDZV_TIMEOUT,
    "last_call_timeout": LAST_CALL_TIMEOUT,
}
"""Options for keys of ``--rdzv-conf``, the stronger key last; static has ``timeout``."""

OTHER_CONF_KEYS: Mapping[str, str] = {
    "is_host": "use --node-rank 0 on the host",
    "rank": "use --node-rank",
    "keep_alive_interval": "use --heartbeat-timeout",
    "keep_alive_max_attempt": "use --heartbeat-timeout",
}
"""What to type instead of other keys of ``--rdzv-conf``."""


def translate(
    sources: Sequence[Settings], environ: Mapping[str, str], *, called: str
) -> tuple[tuple[Settings, ...], list[str]]:
    """Return ``sources``, the strongest first, in terms of clusterrun's options; and warnings.

    ``called`` is the name of the command, such as ``torchrun``.
    """
    weakest = (settings_from_torch(environ), DEFAULTS if called == TORCHRUN else {})
    settings = (*sources, _from_rdzv_conf(sources), *weakest)
    warnings = [*_warnings(settings)]
    if value_of(STANDALONE, settings).value:
        settings = _standalone(settings)
    elif value_of(RDZV_BACKEND, settings).value == "static":
        settings = _static(settings)
    elif value_of(RDZV_BACKEND, settings).value == "c10d":
        warnings += _c10d_warnings(settings)
        settings = _c10d(settings)
    return (*settings, _node_0_by_local_addr(settings)), warnings


def _from_rdzv_conf(sources: Sequence[Settings]) -> Settings:
    conf = value_of(RDZV_CONF, sources)
    return {
        option.name: (Fact(conf.value[key], f"{conf.origin} {key}"),)
        for key, option in CONF_KEYS.items()
        if key in conf.value
    }


def _standalone(settings: Sequence[Settings]) -> tuple[Settings, ...]:
    standalone, nnodes = value_of(STANDALONE, settings), find(NNODES, settings)
    if nnodes is not None and nnodes.value != 1:
        raise UsageError(
            f"{standalone.origin} is for one node, but nnodes is {nnodes}",
            f"leave {standalone.origin} out, and set where the nodes meet:\n"
            "  --rdzv-backend c10d --rdzv-endpoint HOST:PORT",
        )
    origin = standalone.origin
    one_node: Settings = {"nnodes": (Fact("1", origin),), "cluster": (Fact("none", origin),)}
    return (one_node, *_without(settings, "node_rank", "rdzv_endpoint"))


def _static(settings: tuple[Settings, ...]) -> tuple[Settings, ...]:
    """Return settings by which the nodes meet at the endpoint, where rank 0 then listens."""
    endpoint = value_of(RDZV_ENDPOINT, settings)
    if endpoint.value is None:
        return settings
    address = Endpoint.parse(endpoint.value)
    # As a text again, an IPv6 address has no brackets.
    at_endpoint = {MASTER_ADDR.name: (Fact(address.host, endpoint.origin),)}
    if address.port is not None:
        at_endpoint[MASTER_PORT.name] = (Fact(str(address.port), endpoint.origin),)
    return (at_endpoint, *_without(settings, "rdzv_endpoint"))


def _c10d(settings: tuple[Settings, ...]) -> tuple[Settings, ...]:
    """Return settings without a rank, as nodes are ranked by joining, and without a port in use."""
    is_in_use = _master_port_is_endpoints(settings)
    return _without(settings, "node_rank", *(("master_port",) if is_in_use else ()))


def _c10d_warnings(settings: Sequence[Settings]) -> Iterator[str]:
    nnodes, rank = find(NNODES, settings), find(NODE_RANK, settings)
    backend = value_of(RDZV_BACKEND, settings)
    if rank is not None and nnodes is not None and nnodes.value > 1:
        yield (
            f"{rank.origin} {rank.value} is ignored with {backend.origin} c10d, as under torchrun:"
            " node 0 is the one at the endpoint, the others are ranked as they join"
        )
    if _master_port_is_endpoints(settings):
        port = value_of(MASTER_PORT, settings)
        yield (
            f"{port.origin} {port.value} is ignored: it is the endpoint's port, which the agents"
            " keep in use; a free port is chosen for the workers"
        )


def _master_port_is_endpoints(settings: Sequence[Settings]) -> bool:
    endpoint, port = value_of(RDZV_ENDPOINT, settings), value_of(MASTER_PORT, settings)
    if endpoint.value is None or port.value is None:
        return False
    return Endpoint.parse(endpoint.value).port == port.value


def _node_0_by_local_addr(settings: Sequence[Settings]) -> Settings:
    """Return node rank 0 if ``--local-addr`` is the address at which all nodes meet."""
    own = value_of(LOCAL_ADDR, settings)
    endpoint, master = value_of(RDZV_ENDPOINT, settings), value_of(MASTER_ADDR, settings)
    meeting = Endpoint.parse(endpoint.value).host if endpoint.value else master.value
    if own.value is None or own.value != meeting or find(NODE_RANK, settings) is not None:
        return {}
    return {NODE_RANK.name: (Fact("0", own.origin),)}


def _without(settings: Sequence[Settings], *names: str) -> tuple[Settings, ...]:
    return tuple(
        {name: texts for name, texts in source.items() if name not in names} for source in settings
    )


def _warnings(settings: Sequence[Settings]) -> Iterator[str]:
    """Yield a warning for each option that has no effect here, with what replaces it."""
    _check_untranslatable(settings)
    interval = find(MONITOR_INTERVAL, settings)
    if interval is not None:
        yield f"{interval.origin} has no effect: clusterrun sees the end of a worker at once"
    handler = value_of(EVENT_LOG_HANDLER, settings)
    if handler.value != EVENT_LOG_HANDLER.default:
        yield f"{handler.origin} {handler.value} has no effect: --events FILE writes events"
    conf = value_of(RDZV_CONF, settings)
    for key in conf.value.keys() - CONF_KEYS.keys():
        hint = OTHER_CONF_KEYS.get(key, "clusterrun has no such setting")
        yield f"{conf.origin} {key}={conf.value[key]} has no effect: {hint}"


def _check_untranslatable(settings: Sequence[Settings]) -> None:
    specs = value_of(LOGS_SPECS, settings)
    if specs.value not in {"", DEFAULT_LOGS_SPECS}:
        raise UsageError(
            f"{specs.origin}: clusterrun has no plugins for logs",
            "use --log-dir, --redirects, --tee or --local-ranks-filter",
        )
    use_env, pass_rank = value_of(USE_ENV, settings), value_of(PASS_LOCAL_RANK, settings)
    if use_env.value and pass_rank.value:
        raise UsageError(
            f"{use_env.origin} and {pass_rank.origin} cannot be used together", "leave one out"
        )
