"""Options for torchrun's command lines."""

from collections.abc import Mapping

from clusterrun.sources.options.option import Option, switch_option
from clusterrun.sources.options.values import numbers, torchrun

DEFAULT_LOGS_SPECS = "default"
"""The name under which torch registers its own (``torchrun.logs_specs`` of its entry points)."""

STANDALONE = switch_option(
    "standalone",
    help="Run on this node alone, whatever the cluster or --rdzv-endpoint says",
)
RDZV_BACKEND = Option(
    "rdzv_backend",
    parse=torchrun.rendezvous_backend,
    default="",
    metavar="static|c10d",
    help=(
        "With static, --rdzv-endpoint is MASTER_ADDR and MASTER_PORT; with c10d, node ranks follow "
        "the order of joining"
    ),
    default_words="neither",
)
RDZV_CONF: Option[Mapping[str, str]] = Option(
    "rdzv_conf",
    parse=torchrun.rendezvous_conf,
    default={},
    metavar="KEY=VALUE,...",
    help="Only join_timeout, timeout and last_call_timeout are read",
    default_words="none",
)
SIGNALS_TO_HANDLE = Option(
    "signals_to_handle",
    parse=torchrun.signal_names,
    default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    metavar="NAMES",
    help="TORCHELASTIC_SIGNALS_TO_HANDLE of the workers; clusterrun itself handles all signals",
)
USE_ENV = switch_option(
    "use_env",
    help="Give the local rank only as LOCAL_RANK, which is the default",
)
MONITOR_INTERVAL = Option(
    "monitor_interval",
    parse=numbers.seconds,
    default=0.1,
    metavar="SECONDS",
    help="No effect: clusterrun learns of each exit at once",
)
EVENT_LOG_HANDLER = Option(
    "event_log_handler",
    parse=torchrun.plugin,
    default="null",
    metavar="NAME",
    help="No effect: --events writes the events of a job to a file",
)
LOGS_SPECS = Option(
    "logs_specs",
    parse=torchrun.plugin,
    default="",
    metavar="NAME",
    help="Not supported: --log-dir sets where logs go, and no plugins are loaded",
    default_words="none",
)
