"""Which scheduler a job is submitted to."""

from collections.abc import Sequence
from importlib.util import find_spec

from clusterrun.errors import UsageError
from clusterrun.job.declaring import Fact
from clusterrun.job.program import find_executable
from clusterrun.job.sources import Layer, find
from clusterrun.sources.submissions.options import ROWS
from clusterrun.sources.submissions.requests import SCHEDULERS

CLIENT = "kubernetes"
"""The package that does without kubectl."""


def find_scheduler(sources: Sequence[Layer], search_path: str) -> Fact[str]:
    """Return the scheduler that is set, else the first whose command is on ``search_path``.

    Raises:
        UsageError: none is set, and none is found.

    """
    if given := find("to", sources, ROWS):
        return given
    for name, command in SCHEDULERS.items():
        if path := find_executable(command, search_path):
            return Fact(name, path)
    commands = ", ".join(SCHEDULERS.values())
    raise UsageError(
        f"this machine has no scheduler: none of {commands} is on PATH",
        "type it on a login node, or print what would be submitted:\n"
        f"  clusterrun submit --to {next(iter(SCHEDULERS))} --print ...",
    )


def expect_command(scheduler: Fact[str], search_path: str) -> None:
    """Check that the scheduler can be asked: by its command or, for Kubernetes, by its client.

    Raises:
        UsageError: the command is not on ``search_path``, and no client is installed.

    """
    name = SCHEDULERS[scheduler.value]
    is_kubernetes = scheduler.value == "kubernetes"
    if find_executable(name, search_path) or (is_kubernetes and find_spec(CLIENT)):
        return
    client = "; or install its client: pip install 'clusterrun[kubernetes]'"
    raise UsageError(
        f"{scheduler.origin} {scheduler.value}: {name} is not on PATH",
        "type it on a login node, or add --print to see what would be submitted"
        f"{client if is_kubernetes else ''}",
    )
