"""Options: when a worker fails."""

from clusterrun.domain.job import OnHang
from clusterrun.sources.options.option import Option, switch_option
from clusterrun.sources.options.values import choices, numbers

MAX_RESTARTS = Option(
    "max_restarts",
    parse=numbers.restart_count,
    default=0,
    metavar="N",
    help="How often to start all workers again after one has failed",
)
NO_RESTART_EXIT_CODES: Option[tuple[int, ...]] = Option(
    "no_restart_exit_codes",
    parse=numbers.exit_codes,
    default=(),
    metavar="CODES",
    help="Exit codes of a worker after which the job is not restarted, such as 3,5-7",
    default_words="none",
)
NO_FAIL_FAST = switch_option(
    "no_fail_fast",
    help="Restart even if the same rank failed twice in a row with the same last line",
)
HEARTBEAT_TIMEOUT = Option(
    "heartbeat_timeout",
    parse=numbers.waiting_time,
    default=15.0,
    metavar="SECONDS",
    help="How long a node may be silent before it counts as lost",
)
HANG_TIMEOUT: Option[float | None] = Option(
    "hang_timeout",
    parse=numbers.seconds,
    default=None,
    metavar="SECONDS",
    help="Print the Python stacks of all ranks if none has printed or exited for this long",
    default_words="never",
)
ON_HANG = Option(
    "on_hang",
    parse=choices.on_hang,
    default=OnHang.REPORT,
    metavar="report|restart|stop",
    help="After --hang-timeout only report the hang, restart all workers, or stop the job",
)
SHUTDOWN_TIMEOUT = Option(
    "shutdown_timeout",
    parse=numbers.seconds,
    default=25.0,
    metavar="SECONDS",
    help="How long workers may take to exit after SIGTERM, before SIGKILL",
)
CONTAIN = switch_option(
    "contain",
    help="Run the job in a PID namespace: whatever is killed, the kernel ends the rest at once",
)
