"""Options of the commands that look at a machine or a running job; a job itself has none of them."""

from pathlib import Path

from clusterrun.sources.options.option import Option, switch_option
from clusterrun.sources.options.values import numbers, paths

RANK: Option[int | None] = Option(
    "rank",
    parse=numbers.rank,
    default=None,
    metavar="N",
    help="Of this rank alone",
    default_words="all ranks",
    in_file=False,
)
SHOWN_NODE: Option[int | None] = Option(
    "node",
    parse=numbers.node_rank,
    default=None,
    metavar="N",
    help="Of the ranks of this node alone, by its node rank",
    default_words="all nodes",
    in_file=False,
)
GREP = Option(
    "grep",
    parse=str,
    default="",
    metavar="TEXT",
    help="Only lines that contain TEXT",
    default_words="all lines",
    in_file=False,
)
FOLLOW = switch_option(
    "follow", short="f", help="Go on with what is printed next, until the run ends"
)
NATIVE = switch_option("native", help="With py-spy: also native frames and locals")
THIS_MACHINE = switch_option(
    "this_machine", help="Check this machine alone, though the job has other nodes"
)
CAPTURE: Option[Path | None] = Option(
    "capture",
    parse=paths.new_archive,
    default=None,
    metavar="FILE",
    help="Write what was read of this machine to this .tar.xz or .tar.gz",
    default_words="no file",
    in_file=False,
)
