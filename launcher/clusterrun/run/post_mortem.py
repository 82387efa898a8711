"""``--pdb``: each worker runs the user's program under one that opens pdb at an uncaught exception."""

import os
from pathlib import Path

from msgspec.structs import replace

from clusterrun.errors import UsageError
from clusterrun.job.job import Job
from clusterrun.planning.plan import NodePlan
from clusterrun.workers.terminal import Terminal

PROGRAM = Path(__file__).parents[1] / "workers" / "pdb" / "post_mortem.py"


def check_terminal(job: Job) -> None:
    """Check that standard input is a terminal.

    Raises:
        UsageError: it is not, or another program is in its foreground.

    """
    if Terminal.in_foreground(0) is None:
        raise UsageError(
            f"{job.origin('pdb')} needs a terminal, but standard input is not one",
            "run the command on a terminal",
        )


def with_pdb(plan: NodePlan) -> NodePlan:
    """Return the plan with commands that execute ``PROGRAM``, which runs the user's program."""
    words = (str(PROGRAM), os.ttyname(0))
    # After the interpreter and its option -u.
    workers = tuple(
        replace(each, command=(*each.command[:2], *words, *each.command[2:]))
        for each in plan.workers
    )
    return replace(plan, workers=workers)
