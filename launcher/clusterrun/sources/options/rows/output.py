"""Options: what is printed."""

from clusterrun.domain.ranks import RankSet
from clusterrun.sources.options.option import Option, switch_option
from clusterrun.sources.options.values import numbers, output

LOCAL_RANKS_FILTER: Option[RankSet | None] = Option(
    "local_ranks_filter",
    parse=numbers.ranks,
    default=None,
    metavar="RANKS",
    help="Print only the lines of these local ranks of each node, such as 0,2-3",
    default_words="all",
)
RANKS: Option[RankSet | None] = Option(
    "ranks",
    parse=numbers.ranks,
    default=None,
    metavar="RANKS",
    help="Print only the lines of these ranks of the whole job, such as 0,8-15",
    default_words="all",
)
LOG_LINE_PREFIX_TEMPLATE: Option[str | None] = Option(
    "log_line_prefix_template",
    parse=output.line_prefix,
    default=None,
    metavar="TEXT",
    help=(
        "What to print before each line of a worker, with ${rank}, ${local_rank}, ${role_name}, "
        "${host} and ${node_rank} filled in"
    ),
    default_words="TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE if set, else [rank R]",
)
DUPLICATE_STDOUT_FILTERS: Option[tuple[str, ...]] = Option(
    "duplicate_stdout_filters",
    parse=output.line_filters,
    default=(),
    metavar="TEXT,...",
    help="Also write printed lines of standard output that contain a TEXT to filtered_stdout.log",
    default_words="none",
)
DUPLICATE_STDERR_FILTERS: Option[tuple[str, ...]] = Option(
    "duplicate_stderr_filters",
    parse=output.line_filters,
    default=(),
    metavar="TEXT,...",
    help="The same for standard error and filtered_stderr.log",
    default_words="none",
)
VERBOSE = switch_option(
    "verbose",
    help="Print more of what is done and why",
    short="v",
    common_in_scripts=True,
)
