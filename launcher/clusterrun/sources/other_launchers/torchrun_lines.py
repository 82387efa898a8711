"""What a command line of torchrun's says in words of its own, put into ours."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.facts import Fact
from clusterrun.domain.job import WorkerCount
from clusterrun.errors import UsageError
from clusterrun.sources.options.rows.failing import SHUTDOWN_TIMEOUT
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
from clusterrun.sources.options.rows.workers import NNODES, NODE_RANK, NPROC_PER_NODE
from clusterrun.sources.settings import Settings, find, value_of

TORCHRUN = "torchrun"

ORIGIN = "torchrun's default"

DEFAULTS: Settings = {
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
"""What holds where clusterrun is called as torchrun and nothing else is said."""

SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"

TIMEOUTS = ("join_timeout", "timeout")
"""Keys of ``--rdzv-conf`` for ``--rdzv-timeout``; static has the second."""

LAST_CALL = "last_call_timeout"
"""Its key for the flag of that name."""

INSTEAD: Mapping[str, str] = {
    "is_host": "--node-rank 0 says that a node is the host",
    "rank": "--node-rank says it",
    "keep_alive_interval": "--heartbeat-timeout says when a node is lost",
    "keep_alive_max_attempt": "--heartbeat-timeout says when a node is lost",
}
"""What replaces other keys of ``--rdzv-conf``."""


class Translated(Struct, frozen=True):
    """What the sources say, the strongest first, without words that are torchrun's own."""

    sources: tuple[Settings, ...]
    warnings: tuple[str, ...]


def translate(
    sources: Sequence[Settings], environ: Mapping[str, str], *, called: str
) -> Translated:
    """Return what ``sources`` say to a clusterrun that is ``called`` so.

    Raises:
        UsageError: they contradict each other, or ask for what does not exist here.

    """
    weakest = (settings_from_torch(environ), DEFAULTS if called == TORCHRUN else {})
    said = (*sources, _by_conf(sources), *weakest)
    warnings = [*_notes(said)]
    if value_of(STANDALONE, said).value:
        said = _standalone(said)
    elif value_of(RDZV_BACKEND, said).value == "static":
        said = _static(said)
    elif value_of(RDZV_BACKEND, said).value == "c10d":
        warnings += _ignored_by_c10d(said)
        said = _c10d(said)
    return Translated((*said, _node_zero_by_address(said)), tuple(warnings))


def called_as_torchrun(called: str) -> Fact[bool]:
    """Return whether ``called`` is its name."""
    is_so = called == TORCHRUN
    return Fact(is_so, ORIGIN if is_so else "default")


def default_workers(called: str) -> Fact[int | WorkerCount]:
    """Return how many workers a node has where neither a user nor a cluster says."""
    if called == TORCHRUN:
        return Fact(1, ORIGIN)
    return Fact(NPROC_PER_NODE.default, "default")


def default_prefix(called: str, *, is_teed: bool) -> Fact[str | None]:
    """Return the template of what stands before printed lines where nobody says; None: ours.

    torchrun puts a prefix before lines that it prints for ``--tee`` alone (run.py of 2.13 and
    multiprocessing/tail_log.py): others look as workers print them, and programs read them.
    """
    if called != TORCHRUN:
        return Fact(None, "default")
    return Fact("[${role_name}${local_rank}]:" if is_teed else "", ORIGIN)


def settings_from_torch(environ: Mapping[str, str]) -> Settings:
    """Return what torch's own variable for it says, which is no option of anybody's."""
    if not environ.get(SHUTDOWN_VARIABLE):
        return {}
    return {SHUTDOWN_TIMEOUT.name: (Fact(environ[SHUTDOWN_VARIABLE], SHUTDOWN_VARIABLE),)}


def _by_conf(sources: Sequence[Settings]) -> Settings:
    conf = value_of(RDZV_CONF, sources)
    keys = {
        RDZV_TIMEOUT.name: next((key for key in TIMEOUTS if key in conf.value), ""),
        LAST_CALL_TIMEOUT.name: LAST_CALL if LAST_CALL in conf.value else "",
    }
    return {
        name: (Fact(conf.value[key], f"{conf.origin} {key}"),) for name, key in keys.items() if key
    }


def _standalone(said: tuple[Settings, ...]) -> tuple[Settings, ...]:
    asked = value_of(STANDALONE, said)
    nnodes = find(NNODES, said)
    if nnodes is not None and nnodes.value != 1:
        raise UsageError(
            f"{asked.origin} is for one node, but nnodes is {nnodes}",
            f"leave {asked.origin} out, and say where the nodes meet:\n"
            "  --rdzv-backend c10d --rdzv-endpoint HOST:PORT",
        )
    alone: Settings = {
        "nnodes": (Fact("1", asked.origin),),
        "cluster": (Fact("none", asked.origin),),
    }
    return (alone, *_without(said, "node_rank", "rdzv_endpoint"))


def _static(said: tuple[Settings, ...]) -> tuple[Settings, ...]:
    """Rank 0 listens at the endpoint, and the nodes meet there before."""
    endpoint = value_of(RDZV_ENDPOINT, said)
    if endpoint.value is None:
        return said
    where = Endpoint.parse(endpoint.value)
    # Read as an address once more: an IPv6 one keeps its brackets away.
    at_endpoint = {"master_addr": (Fact(where.host, endpoint.origin),)}
    if where.port is not None:
        at_endpoint["master_port"] = (Fact(str(where.port), endpoint.origin),)
    return (at_endpoint, *_without(said, "rdzv_endpoint"))


def _c10d(said: tuple[Settings, ...]) -> tuple[Settings, ...]:
    """Ranks go by joining, as there, and a port named twice is the agents' alone."""
    left = _without(said, "node_rank")
    return _without(left, "master_port") if _names_port_twice(said) else left


def _ignored_by_c10d(said: Sequence[Settings]) -> Iterator[str]:
    nnodes, rank = find(NNODES, said), find(NODE_RANK, said)
    backend = value_of(RDZV_BACKEND, said)
    if rank is not None and nnodes is not None and nnodes.value > 1:
        yield (
            f"{rank.origin} {rank.value} changes nothing with {backend.origin} c10d, nor does it"
            " under torchrun: node 0 is the one at the endpoint, the others by order of joining"
        )
    if _names_port_twice(said):
        port = value_of(MASTER_PORT, said)
        yield (
            f"{port.origin} {port.value} is the endpoint's port too, where the nodes meet for the"
            " whole job: MASTER_PORT is another"
        )


def _names_port_twice(said: Sequence[Settings]) -> bool:
    endpoint, port = value_of(RDZV_ENDPOINT, said), value_of(MASTER_PORT, said)
    if endpoint.value is None or port.value is None:
        return False
    return Endpoint.parse(endpoint.value).port == port.value


def _node_zero_by_address(said: Sequence[Settings]) -> Settings:
    """Return that this is node 0, where its own address is the one that all nodes are told."""
    own = value_of(LOCAL_ADDR, said)
    endpoint, master = value_of(RDZV_ENDPOINT, said), value_of(MASTER_ADDR, said)
    meeting = Endpoint.parse(endpoint.value).host if endpoint.value else master.value
    if own.value is None or own.value != meeting or find(NODE_RANK, said) is not None:
        return {}
    return {NODE_RANK.name: (Fact("0", own.origin),)}


def _without(said: Sequence[Settings], *names: str) -> tuple[Settings, ...]:
    return tuple(
        {name: texts for name, texts in source.items() if name not in names} for source in said
    )


def _notes(said: Sequence[Settings]) -> Iterator[str]:
    """Yield a line for each word that changes nothing here, with what replaces it.

    Raises:
        UsageError: it asks for what does not exist here.

    """
    specs = value_of(LOGS_SPECS, said)
    if specs.value not in {"", DEFAULT_LOGS_SPECS}:
        raise UsageError(
            f"{specs.origin}: clusterrun loads no plugins for logs",
            "--log-dir, --redirects, --tee and --local-ranks-filter say where output goes",
        )
    interval = find(MONITOR_INTERVAL, said)
    if interval is not None:
        yield f"{interval.origin} changes nothing: clusterrun hears of each worker's end at once"
    handler = value_of(EVENT_LOG_HANDLER, said)
    if handler.value != EVENT_LOG_HANDLER.default:
        yield (
            f"{handler.origin} {handler.value} changes nothing: --events FILE writes what happens"
        )
    conf = value_of(RDZV_CONF, said)
    for key in conf.value.keys() - {*TIMEOUTS, LAST_CALL}:
        instead = INSTEAD.get(key, "clusterrun has no such setting")
        yield f"{conf.origin} {key}={conf.value[key]} changes nothing: {instead}"
    use_env, passed = value_of(USE_ENV, said), value_of(PASS_LOCAL_RANK, said)
    if use_env.value and passed.value:
        raise UsageError(
            f"{use_env.origin} and {passed.origin} exclude each other", "leave one of them out"
        )
