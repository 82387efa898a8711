"""Options: how workers start."""

from clusterrun.domain.job import StartMethod
from clusterrun.sources.options.option import Group, Option, switch_option
from clusterrun.sources.options.values import choices, numbers

START_METHOD = Option(
    "start_method",
    parse=choices.start_method,
    default=StartMethod.AUTO,
    metavar="auto|fork|spawn",
    help=(
        "Fork workers from a process that has imported torch and the like, or give each"
        " an interpreter of its own; auto forks where that is safe and faster"
    ),
    group=Group.STARTING,
)
PRELOAD: Option[str | tuple[str, ...]] = Option(
    "preload",
    parse=choices.preload,
    default="auto",
    metavar="auto|all|none|MODULE,...",
    help=(
        "What is imported before workers are forked, of what the script imports first; auto: torch"
        " and other packages known to allow it; all: everything"
    ),
    group=Group.STARTING,
)
PRELOAD_TIMEOUT = Option(
    "preload_timeout",
    parse=numbers.seconds,
    default=60.0,
    metavar="SECONDS",
    help="The time for which that may stand still, before each worker does it itself",
    group=Group.STARTING,
)
EXEC = switch_option(
    "exec",
    help="Become the one worker instead of looking after it; for one task per GPU",
    group=Group.STARTING,
    common_in_scripts=True,
)
