"""Options: when a worker fails."""

from clusterrun.sources.options.option import Group, Option, switch_option
from clusterrun.sources.options.values import numbers

MAX_RESTARTS = Option(
    "max_restarts",
    parse=numbers.restart_count,
    default=0,
    metavar="N",
    help="How often all workers are started again after one has failed",
    group=Group.FAILING,
)
NO_RESTART_EXIT_CODES: Option[tuple[int, ...]] = Option(
    "no_restart_exit_codes",
    parse=numbers.exit_codes,
    default=(),
    metavar="CODES",
    help="Exit codes after which nothing is started again, such as 3,5-7",
    group=Group.FAILING,
    default_words="none",
)
NO_FAIL_FAST = switch_option(
    "no_fail_fast",
    help="Start again even if the same rank has just failed twice with the same last line",
    group=Group.FAILING,
)
HEARTBEAT_TIMEOUT = Option(
    "heartbeat_timeout",
    parse=numbers.waiting_time,
    default=15.0,
    metavar="SECONDS",
    help="The time for which a node may be silent before it counts as lost",
    group=Group.FAILING,
)
HANG_TIMEOUT: Option[float | None] = Option(
    "hang_timeout",
    parse=numbers.seconds,
    default=None,
    metavar="SECONDS",
    help="Print the Python stacks of all ranks when none has printed or exited for so long",
    group=Group.FAILING,
    default_words="nobody watches",
)
SHUTDOWN_TIMEOUT = Option(
    "shutdown_timeout",
    parse=numbers.seconds,
    default=25.0,
    metavar="SECONDS",
    help="The time that workers get to end after SIGTERM, before SIGKILL",
    group=Group.FAILING,
)
CONTAIN = switch_option(
    "contain",
    help="Keep the job in a PID namespace: whatever is killed, the kernel ends the rest at once",
    group=Group.FAILING,
)
