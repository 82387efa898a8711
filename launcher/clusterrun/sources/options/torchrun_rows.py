"""Rows of the table of options for what only lines of torchrun's say."""

from collections.abc import Mapping

from clusterrun.sources.options import torchrun_values as values
from clusterrun.sources.options.option import Group, Kind, Option
from clusterrun.sources.options.values import seconds, switch

DEFAULT_LOGS_SPECS = "default"
"""The name under which torch registers its own (``torchrun.logs_specs`` of its entry points)."""

STANDALONE = Option(
    "standalone",
    parse=switch,
    default=False,
    metavar="",
    help="One node, whatever the cluster or an endpoint says",
    group=Group.TORCHRUN,
    kind=Kind.FLAG,
)
RDZV_BACKEND = Option(
    "rdzv_backend",
    parse=values.rendezvous_backend,
    default="",
    metavar="static|c10d",
    help=(
        "With static, --rdzv-endpoint is MASTER_ADDR and MASTER_PORT; with c10d, node ranks are given"
        " in the order of joining"
    ),
    group=Group.TORCHRUN,
    otherwise="neither",
)
RDZV_CONF: Option[Mapping[str, str]] = Option(
    "rdzv_conf",
    parse=values.rendezvous_conf,
    default={},
    metavar="KEY=VALUE,...",
    help="Of these join_timeout, timeout and last_call_timeout are read",
    group=Group.TORCHRUN,
    otherwise="none",
)
SIGNALS_TO_HANDLE = Option(
    "signals_to_handle",
    parse=values.signal_names,
    default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    metavar="NAMES",
    help="What workers are told in TORCHELASTIC_SIGNALS_TO_HANDLE; clusterrun handles all signals",
    group=Group.TORCHRUN,
)
USE_ENV = Option(
    "use_env",
    parse=switch,
    default=False,
    metavar="",
    help="Tell the local rank by LOCAL_RANK alone, which is so without --pass-local-rank",
    group=Group.TORCHRUN,
    kind=Kind.FLAG,
)
MONITOR_INTERVAL = Option(
    "monitor_interval",
    parse=seconds,
    default=0.1,
    metavar="SECONDS",
    help="Changes nothing: clusterrun hears of each end at once",
    group=Group.TORCHRUN,
)
EVENT_LOG_HANDLER = Option(
    "event_log_handler",
    parse=values.plugin,
    default="null",
    metavar="NAME",
    help="Changes nothing: --events writes what happens",
    group=Group.TORCHRUN,
)
LOGS_SPECS = Option(
    "logs_specs",
    parse=values.plugin,
    default="",
    metavar="NAME",
    help="Refused: no plugins are loaded, and --log-dir says where logs go",
    group=Group.TORCHRUN,
    otherwise="none",
)

TORCHRUN_OPTIONS: tuple[Option[object], ...] = (
    STANDALONE,
    RDZV_BACKEND,
    RDZV_CONF,
    SIGNALS_TO_HANDLE,
    USE_ENV,
    MONITOR_INTERVAL,
    EVENT_LOG_HANDLER,
    LOGS_SPECS,
)
"""In the order of --help."""
