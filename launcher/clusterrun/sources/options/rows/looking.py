"""Options of the commands that look at a machine or a running job; a job itself has none of them."""

from typing import Annotated

from msgspec import Struct

from clusterrun.job import values
from clusterrun.job.declaring import Option, rows_of
from clusterrun.sources.options.option import as_old_row


class Looking(Struct, frozen=True):
    """Options of all of them."""

    rank: Annotated[
        values.Rank | None,
        Option("Of this rank alone", metavar="N", default="all ranks", in_file=False),
    ] = None
    node: Annotated[
        values.RankOfNode | None,
        Option(
            "Of the ranks of this node alone, by its node rank",
            metavar="N",
            default="all nodes",
            in_file=False,
        ),
    ] = None
    grep: Annotated[
        values.Name,
        Option("Only lines that contain TEXT", metavar="TEXT", default="all lines", in_file=False),
    ] = ""
    follow: Annotated[
        bool, Option("Go on with what is printed next, until the run ends", short="f")
    ] = False
    native: Annotated[bool, Option("With py-spy: also native frames and locals")] = False
    this_machine: Annotated[
        bool, Option("Check this machine alone, though the job has other nodes")
    ] = False
    capture: Annotated[
        values.NewArchive | None,
        Option(
            "Write what was read of this machine to this .tar.xz or .tar.gz",
            default="no file",
            in_file=False,
        ),
    ] = None
    warm: Annotated[bool, Option("End what --keep-warm has left, as soon as it has no job")] = False
    now: Annotated[bool, Option("Kill the workers of all nodes, without a grace period")] = False


_ROWS = rows_of(Looking)

RANK = as_old_row(_ROWS["rank"])
SHOWN_NODE = as_old_row(_ROWS["node"])
GREP = as_old_row(_ROWS["grep"])
FOLLOW = as_old_row(_ROWS["follow"])
NATIVE = as_old_row(_ROWS["native"])
THIS_MACHINE = as_old_row(_ROWS["this_machine"])
CAPTURE = as_old_row(_ROWS["capture"])
WARM = as_old_row(_ROWS["warm"])
NOW = as_old_row(_ROWS["now"])
