"""Options: how workers start."""

from clusterrun.domain.job import StartMethod
from clusterrun.sources.options.option import Option, switch_option
from clusterrun.sources.options.values import choices, numbers

START_METHOD = Option(
    "start_method",
    parse=choices.start_method,
    default=StartMethod.AUTO,
    metavar="auto|fork|spawn",
    help=(
        "Fork workers from one process that has imported torch, or spawn an interpreter for each; "
        "auto: fork where that is safe and faster"
    ),
)
PRELOAD: Option[str | tuple[str, ...]] = Option(
    "preload",
    parse=choices.preload,
    default="auto",
    metavar="auto|all|none|MODULE,...",
    help=(
        "What to import once, before workers are forked: of the script's first imports those known "
        "to allow it (auto), all or none; or these modules"
    ),
)
KEEP_WARM = Option(
    "keep_warm",
    parse=numbers.seconds,
    default=0.0,
    metavar="SECONDS",
    help=(
        "How long the process that has imported torch stays after the job, for the next launch of "
        "this program; 0: it ends with the job"
    ),
)
EXEC = switch_option(
    "exec",
    help="Replace this process by its one worker; for schedulers that start a task for each GPU",
    common_in_scripts=True,
)
