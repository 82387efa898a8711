"""Translates torchrun's options, and sets its defaults if clusterrun is called as torchrun."""

from collections.abc import Iterator, Mapping, Sequence

from clusterrun.errors import UsageError
from clusterrun.job.clusters.detection import NO_CLUSTER
from clusterrun.job.declarations import Setting
from clusterrun.job.options import DEFAULT_LOGS_SPECS, OPTIONS, NodeLauncher
from clusterrun.job.sources import Layer, find, layer_of, strength, value_of
from clusterrun.job.values import Endpoint

TORCHRUN = "torchrun"

ORIGIN = "torchrun's default"

DEFAULTS: Layer = {
    name: (Setting(text, ORIGIN),)
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

ONE_WORKER: Layer = {"nproc_per_node": (Setting(1, ORIGIN),)}
"""torchrun's default number of workers; weaker than a cluster's."""

TORCH_VARIABLES = {
    "shutdown_timeout": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    "log_line_prefix_template": "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
    "python": "PYTHON_EXEC",
}
"""torch's own variables, by option; they replace only defaults."""

CONF_KEYS = {
    "timeout": "rdzv_timeout",
    "join_timeout": "rdzv_timeout",
    "last_call_timeout": "last_call_timeout",
}
"""Options by the keys of ``--rdzv-conf``, the stronger key last; ``timeout`` is for static."""

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
    """Return ``sources``, the strongest first, with torchrun's options translated; and warnings.

    ``called`` is the name of the command, such as ``torchrun``.

    Raises:
        UsageError: an option is not supported, or two options are incompatible.

    """
    by_torch = {
        name: (Setting(environ[variable], variable),)
        for name, variable in TORCH_VARIABLES.items()
        if environ.get(variable)
    }
    layers = (*with_conf(sources), by_torch, DEFAULTS if called == TORCHRUN else {})
    _check_supported(layers)
    warnings = [*_without_effect(layers)]
    if value_of("standalone", layers).value:
        layers = _standalone(layers)
    elif (backend := value_of("rdzv_backend", layers)).value == "static":
        layers = _static(layers)
    elif backend.value == "c10d":
        layers, ignored = _c10d(layers, backend)
        warnings += ignored
    return (*layers, _node_0_by_local_addr(layers)), warnings


def with_conf(sources: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return ``sources`` with the options that ``--rdzv-conf`` sets, right behind its own source."""
    conf, at = value_of("rdzv_conf", sources), strength("rdzv_conf", sources) + 1
    texts = dict(conf.value)
    by_conf = {
        name: (Setting(texts[key], f"{conf.origin} {key}"),)
        for key, name in CONF_KEYS.items()
        if key in texts
    }
    return (*sources[:at], by_conf, *sources[at:])


def default_prefix(called: str, sources: Sequence[Layer]) -> Setting[str | None]:
    """Return the default template for the prefix of printed lines; None: clusterrun's own.

    torchrun adds a prefix only to lines that it prints for ``--tee`` (run.py of 2.13 and
    multiprocessing/tail_log.py), and programs may parse the others.
    """
    if called != TORCHRUN:
        return Setting(None, "default")
    is_teed = bool(value_of("tee", sources).value)
    return Setting("[${role_name}${local_rank}]:" if is_teed else "", ORIGIN)


def _check_supported(layers: Sequence[Layer]) -> None:
    specs = value_of("logs_specs", layers)
    if specs.value not in {"", DEFAULT_LOGS_SPECS}:
        raise UsageError(
            f"{specs.origin}: clusterrun has no plugins for logs",
            "give --log-dir, --redirects, --tee or --local-ranks-filter",
        )
    use_env, pass_rank = value_of("use_env", layers), value_of("pass_local_rank", layers)
    if use_env.value and pass_rank.value:
        raise UsageError(
            f"{use_env.origin} and {pass_rank.origin} can't be used together", "remove one"
        )


def _without_effect(layers: Sequence[Layer]) -> Iterator[str]:
    """Yield a warning for each option without effect, with its replacement."""
    interval = value_of("monitor_interval", layers)
    if interval.value != OPTIONS["monitor_interval"].default:
        yield f"{interval.origin} has no effect: clusterrun sees the end of a worker at once"
    handler = value_of("event_log_handler", layers)
    if handler.value != OPTIONS["event_log_handler"].default:
        yield f"{handler.origin} {handler.value} has no effect: --events FILE writes events"
    conf = value_of("rdzv_conf", layers)
    for key, text in conf.value:
        if key not in CONF_KEYS:
            hint = OTHER_CONF_KEYS.get(key, "clusterrun has no such setting")
            yield f"{conf.origin} {key}={text} has no effect: {hint}"


def _standalone(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    standalone, nnodes = value_of("standalone", layers), find("nnodes", layers)
    origin = standalone.origin
    if nnodes is not None and nnodes.value.maximum != 1:
        raise UsageError(
            f"{origin} is for one node, but nnodes is {nnodes}",
            f"remove {origin}, and set the rendezvous endpoint:\n"
            "  --rdzv-backend c10d --rdzv-endpoint HOST:PORT",
        )
    spares, launcher = value_of("spares", layers), value_of("launcher", layers)
    if spares.value:
        raise UsageError(
            f"{origin} is for one node, but spares is {spares}",
            "remove one of the two, or add --spares 0",
        )
    if launcher.value is NodeLauncher.SSH:
        raise UsageError(
            f"{origin} is for this node alone, but {launcher.origin} is ssh",
            "remove one of the two, or add --launcher none",
        )
    cluster = value_of("cluster", layers)
    if cluster.value != NO_CLUSTER:
        cluster = Setting(NO_CLUSTER, origin)
    one_node = layer_of(nnodes=Setting("1", origin), cluster=cluster)
    return (one_node, *_without(layers, "node_rank", "rdzv_endpoint"))


def _static(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Return ``layers`` with the endpoint as MASTER_ADDR and MASTER_PORT, stronger than its own source."""
    endpoint = value_of("rdzv_endpoint", layers)
    if endpoint.value is None:
        return layers
    address = Endpoint.parse(endpoint.value)
    host = Setting(address.host, endpoint.origin)
    port = None if address.port is None else Setting(str(address.port), endpoint.origin)
    at = strength("rdzv_endpoint", layers)
    as_master = layer_of(master_addr=host, master_port=port)
    return _without((*layers[:at], as_master, *layers[at:]), "rdzv_endpoint")


def _c10d(layers: Sequence[Layer], backend: Setting[str]) -> tuple[tuple[Layer, ...], list[str]]:
    """Return ``layers`` without node_rank and without the endpoint's port as master_port, and warnings.

    Nodes are ranked in the order of joining, and the agents use the endpoint's port.
    """
    ignored, warnings = ["node_rank"], []
    nnodes, rank = find("nnodes", layers), find("node_rank", layers)
    if rank is not None and nnodes is not None and nnodes.value.maximum > 1:
        warnings.append(
            f"{rank.origin} {rank.value} is ignored with {backend.origin} c10d, as under torchrun:"
            " node 0 is the one at the endpoint, the others are ranked as they join"
        )
    endpoint, port = value_of("rdzv_endpoint", layers), value_of("master_port", layers)
    in_use = Endpoint.parse(endpoint.value).port if endpoint.value else None
    if port.value is not None and port.value == in_use:
        ignored.append("master_port")
        warnings.append(
            f"{port.origin} {port.value} is ignored: it is the endpoint's port, which the agents"
            " keep in use; a free port is chosen for the workers"
        )
    return _without(layers, *ignored), warnings


def _node_0_by_local_addr(layers: Sequence[Layer]) -> Layer:
    """Return node rank 0 if ``--local-addr`` is the address of the rendezvous."""
    own = value_of("local_addr", layers)
    endpoint = value_of("rdzv_endpoint", layers)
    master = value_of("master_addr", layers)
    host = Endpoint.parse(endpoint.value).host if endpoint.value else master.value
    if own.value is None or own.value != host or find("node_rank", layers) is not None:
        return {}
    return layer_of(node_rank=Setting("0", own.origin))


def _without(layers: Sequence[Layer], *names: str) -> tuple[Layer, ...]:
    return tuple(
        {name: texts for name, texts in layer.items() if name not in names} for layer in layers
    )
