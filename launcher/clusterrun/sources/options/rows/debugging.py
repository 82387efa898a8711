"""Options: how a job is watched, and how its ranks are debugged and profiled."""

from clusterrun.domain.ranks import RankSet
from clusterrun.sources.options.option import Option, switch_option
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
PDB = switch_option(
    "pdb",
    help="Open pdb on the terminal where the first rank that fails has raised its exception",
    common_in_scripts=True,
)
PROFILE: Option[RankSet | None] = Option(
    "profile",
    parse=numbers.ranks,
    default=None,
    metavar="RANKS",
    help=(
        "Record some steps of these ranks by torch.profiler, and write them to the log folder, such"
        " as 0,8-15"
    ),
    default_words="none",
    common_in_scripts=True,
)
