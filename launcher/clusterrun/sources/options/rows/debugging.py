"""Options: how ranks are debugged."""

from clusterrun.sources.options.option import Option
from clusterrun.sources.options.values import numbers

DEBUG: Option[int | None] = Option(
    "debug",
    parse=numbers.rank,
    default=None,
    metavar="RANK",
    help="Have this rank wait for a debugger that attaches by debugpy, such as VS Code",
    default_words="none",
    common_in_scripts=True,
)
