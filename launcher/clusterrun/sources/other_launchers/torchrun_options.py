"""torchrun's own options, translated into those of clusterrun, and its defaults if called as torchrun."""

from collections.abc import Iterator, Mapping, Sequence

from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.facts import Fact
from clusterrun.domain.job import WorkerCount
from clusterrun.errors import UsageError
from clusterrun.job.options import DEFAULT_LOGS_SPECS, OPTIONS
from clusterrun.job.sources import Layer, find, value_of

TORCHRUN = "torchrun"

ORIGIN = "torchrun's default"

DEFAULTS: Layer = {
    name: (Fact(text, ORIGIN),)
    for name, text in (
        ("numa_binding", "none"),
        ("gpus_per_worker", "0"),
        ("start_method", "spawn"),
        ("shutdown_timeout", "30"),
        ("no_fail_fast", "true"),
        ("rdzv_backend", "static"),
    )
}
"""Defaults if clusterrun is called as torchrun."""

TORCH_VARIABLES = {
    "shutdown_timeout": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    "log_line_prefix_template": "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
    "python": "PYTHON_EXEC",
}
"""Variables of torch's that are not PET_ ones, by option; they replace defaults only."""

CONF_KEYS = {
    "timeout": "rdzv_timeout",
    "join_timeout": "rdzv_timeout",
    "last_call_timeout": "last_call_timeout",
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
    sources: Sequence[Layer], environ: Mapping[str, str], *, called: str
) -> tuple[tuple[Layer, ...], list[str]]:
    """Return ``sources``, the strongest first, in terms of clusterrun's options; and warnings.

    ``called`` is the name of the command, such as ``torchrun``.
    """
    weakest = (_settings_from_torch(environ), DEFAULTS if called == TORCHRUN else {})
    settings = (*sources, _from_rdzv_conf(sources), *weakest)
    warnings = [*_warnings(settings)]
    if value_of("standalone", settings).value:
        settings = _standalone(settings)
    elif value_of("rdzv_backend", settings).value == "static":
        settings = _static(settings)
    elif value_of("rdzv_backend", settings).value == "c10d":
        warnings += _c10d_warnings(settings)
        settings = _c10d(settings)
    return (*settings, _node_0_by_local_addr(settings)), warnings


def _from_rdzv_conf(sources: Sequence[Layer]) -> Layer:
    conf = value_of("rdzv_conf", sources)
    values = dict(conf.value)
    return {
        name: (Fact(values[key], f"{conf.origin} {key}"),)
        for key, name in CONF_KEYS.items()
        if key in values
    }


def _standalone(settings: Sequence[Layer]) -> tuple[Layer, ...]:
    standalone, nnodes = value_of("standalone", settings), find("nnodes", settings)
    if nnodes is not None and nnodes.value.most != 1:
        raise UsageError(
            f"{standalone.origin} is for one node, but nnodes is {nnodes}",
            f"leave {standalone.origin} out, and set where the nodes meet:\n"
            "  --rdzv-backend c10d --rdzv-endpoint HOST:PORT",
        )
    origin = standalone.origin
    one_node: Layer = {"nnodes": (Fact("1", origin),), "cluster": (Fact("none", origin),)}
    return (one_node, *_without(settings, "node_rank", "rdzv_endpoint"))


def _static(settings: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Return settings by which the nodes meet at the endpoint, where rank 0 then listens."""
    endpoint = value_of("rdzv_endpoint", settings)
    if endpoint.value is None:
        return settings
    address = Endpoint.parse(endpoint.value)
    # As a text again, an IPv6 address has no brackets.
    at_endpoint = {"master_addr": (Fact(address.host, endpoint.origin),)}
    if address.port is not None:
        at_endpoint["master_port"] = (Fact(str(address.port), endpoint.origin),)
    return (at_endpoint, *_without(settings, "rdzv_endpoint"))


def _c10d(settings: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Return settings without a rank, as nodes are ranked by joining, and without a port in use."""
    is_in_use = _master_port_is_endpoints(settings)
    return _without(settings, "node_rank", *(("master_port",) if is_in_use else ()))


def _c10d_warnings(settings: Sequence[Layer]) -> Iterator[str]:
    nnodes, rank = find("nnodes", settings), find("node_rank", settings)
    backend = value_of("rdzv_backend", settings)
    if rank is not None and nnodes is not None and nnodes.value.most > 1:
        yield (
            f"{rank.origin} {rank.value} is ignored with {backend.origin} c10d, as under torchrun:"
            " node 0 is the one at the endpoint, the others are ranked as they join"
        )
    if _master_port_is_endpoints(settings):
        port = value_of("master_port", settings)
        yield (
            f"{port.origin} {port.value} is ignored: it is the endpoint's port, which the agents"
            " keep in use; a free port is chosen for the workers"
        )


def _master_port_is_endpoints(settings: Sequence[Layer]) -> bool:
    endpoint = value_of("rdzv_endpoint", settings)
    port = value_of("master_port", settings)
    if endpoint.value is None or port.value is None:
        return False
    return bool(Endpoint.parse(endpoint.value).port == port.value)


def _node_0_by_local_addr(settings: Sequence[Layer]) -> Layer:
    """Return node rank 0 if ``--local-addr`` is the address at which all nodes meet."""
    own = value_of("local_addr", settings)
    endpoint = value_of("rdzv_endpoint", settings)
    master = value_of("master_addr", settings)
    host = Endpoint.parse(endpoint.value).host if endpoint.value else master.value
    if own.value is None or own.value != host or find("node_rank", settings) is not None:
        return {}
    return {"node_rank": (Fact("0", own.origin),)}


def _without(settings: Sequence[Layer], *names: str) -> tuple[Layer, ...]:
    return tuple(
        {name: texts for name, texts in source.items() if name not in names} for source in settings
    )


def _warnings(settings: Sequence[Layer]) -> Iterator[str]:
    """Yield a warning for each option that has no effect here, with what replaces it."""
    _check_untranslatable(settings)
    interval = find("monitor_interval", settings)
    if interval is not None:
        yield f"{interval.origin} has no effect: clusterrun sees the end of a worker at once"
    handler = value_of("event_log_handler", settings)
    if handler.value != OPTIONS["event_log_handler"].default:
        yield f"{handler.origin} {handler.value} has no effect: --events FILE writes events"
    conf = value_of("rdzv_conf", settings)
    for key, text in conf.value:
        if key not in CONF_KEYS:
            hint = OTHER_CONF_KEYS.get(key, "clusterrun has no such setting")
            yield f"{conf.origin} {key}={text} has no effect: {hint}"


def _check_untranslatable(settings: Sequence[Layer]) -> None:
    specs = value_of("logs_specs", settings)
    if specs.value not in {"", DEFAULT_LOGS_SPECS}:
        raise UsageError(
            f"{specs.origin}: clusterrun has no plugins for logs",
            "use --log-dir, --redirects, --tee or --local-ranks-filter",
        )
    use_env, pass_rank = value_of("use_env", settings), value_of("pass_local_rank", settings)
    if use_env.value and pass_rank.value:
        raise UsageError(
            f"{use_env.origin} and {pass_rank.origin} cannot be used together", "leave one out"
        )


def called_as_torchrun(called: str) -> Fact[bool]:
    is_so = called == TORCHRUN
    return Fact(is_so, ORIGIN if is_so else "default")


def default_workers(called: str) -> Fact[int | WorkerCount]:
    """Return the number of workers on a node if neither options nor the cluster set it."""
    if called == TORCHRUN:
        return Fact(1, ORIGIN)
    return Fact(WorkerCount.PER_GPU, "default")


def default_prefix(called: str, sources: Sequence[Layer]) -> Fact[str | None]:
    """Return the default template of the prefix of printed lines; None: clusterrun's own.

    torchrun puts a prefix only before lines that it prints for ``--tee`` (run.py of 2.13 and
    multiprocessing/tail_log.py): other lines stay as workers print them, and programs read them.
    """
    if called != TORCHRUN:
        return Fact(None, "default")
    is_teed = value_of("tee", sources).value is not None
    return Fact("[${role_name}${local_rank}]:" if is_teed else "", ORIGIN)


def _settings_from_torch(environ: Mapping[str, str]) -> Layer:
    return {
        name: (Fact(environ[variable], variable),)
        for name, variable in TORCH_VARIABLES.items()
        if environ.get(variable)
    }
