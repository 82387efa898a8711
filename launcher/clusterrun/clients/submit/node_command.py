"""The command line that each node of a submitted job runs.

It has all that the job file and variables set: what they hold when the job leaves the queue, hours
later, does not matter.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.job.declaring import Row, rows_of, words_of
from clusterrun.job.options import OPTIONS, Launcher, NodeLauncher, Reaching
from clusterrun.job.resolve import environment
from clusterrun.job.sources import Layer, find, value_of


class NodeCommand(Struct, frozen=True):
    """The command line of clusterrun on each node."""

    launcher: tuple[str, ...]
    """The words that start clusterrun: its path, or its name in a container."""
    options: tuple[tuple[str, ...], ...]
    """Its options, each with its values: ``("--max-restarts", "2")``."""
    env: str
    """What ``--env`` says, as ``ENV_VARIABLE`` has it; "": nothing."""
    words: tuple[str, ...]
    """SCRIPT and its arguments."""
    unset: tuple[str, ...]
    """Variables of the shell in which the job is submitted that clusterrun must not read."""

    def option(self, flag: str) -> str | None:
        """Return the value of an option; None if it is not set."""
        return next((each[1] for each in self.options if each[0] == flag), None)


OF_THIS_CALL = set(rows_of(Launcher))
"""Options that are no part of a job, or are replaced by what they name."""

FROM_SCHEDULER = {
    *("hosts", "hostfile", "node_rank", "cluster", "master_addr", "master_port", "rdzv_endpoint"),
    *rows_of(Reaching),
}
"""Options by which nodes find each other without a scheduler: those of a job file are left out."""


def node_command(
    sources: Sequence[Layer], words: tuple[str, ...], started_by: tuple[str, ...]
) -> NodeCommand:
    """Return the command.

    Args:
        sources: the flags, CLUSTERRUN_ and PET_ variables, then weaker sources.
        words: SCRIPT and its arguments.
        started_by: the words that start clusterrun.

    Raises:
        UsageError: a variable has a value that cannot be passed.

    """
    rows = (row for name, row in OPTIONS.items() if name != "env")
    options = tuple(option for row in rows for option in _typed(row, sources))
    return NodeCommand(started_by, options, _env(sources), words, _left_out(sources[1:3]))


def _env(sources: Sequence[Layer]) -> str:
    settings = environment(sources)
    for name, fact in settings.items():
        if "\n" in fact.value:
            raise UsageError(
                f"{fact.origin}: {name} has a line break, and a job in a queue can't have it",
                "write it to a file that only you can read, and have the script read it",
            )
    return "\n".join(f"{name}={fact.value}" for name, fact in settings.items())


def _left_out(by_variables: Sequence[Layer]) -> tuple[str, ...]:
    """Return the variables whose values the command does not have.

    Most schedulers give a job the variables of the shell in which it is submitted: there an agent
    would read them all the same, and use ssh, or hosts that are not the scheduler's.
    """
    names = (*sorted(OF_THIS_CALL | FROM_SCHEDULER), "nnodes")
    return tuple(
        text.origin for source in by_variables for name in names for text in source.get(name, ())
    )


def path_of_launcher(interpreter: str) -> tuple[str, ...]:
    """Return the words that start the clusterrun of this ``interpreter``, in any environment."""
    beside = Path(interpreter).with_name("clusterrun")
    return (str(beside),) if beside.is_file() else (interpreter, "-m", "clusterrun")


def check_options(sources: Sequence[Layer]) -> None:
    """Check that each option has a value that it can have.

    Raises:
        UsageError: one has not; the message begins with where it is set.

    """
    for name in OPTIONS:
        try:
            find(name, sources)
        except UsageError as error:
            # Of torchrun's, -t is --tee; of sbatch's, a time.
            hint = f"{error.hint}\nfor a time limit, type --time 10m or --time 2:00:00"
            raise UsageError(error.message, hint if name == "tee" else error.hint) from None
    starts = value_of("launcher", sources[:1])
    if starts.value is not NodeLauncher.NONE:
        raise UsageError(
            f"{starts.origin} {starts.value.value} starts the job now, and the scheduler starts it later",
            f"leave submit or {starts.origin} out",
        )
    dry_run = value_of("dry_run", sources)
    if dry_run.value:
        raise UsageError(
            f"{dry_run.origin} goes with a job that starts now",
            "to see what would be submitted, type --print",
        )


def _typed(row: Row, sources: Sequence[Layer]) -> Iterator[tuple[str, ...]]:
    set_by = [source[row.name] for source in sources if row.name in source]
    if not set_by or row.name in OF_THIS_CALL or _comes_from_scheduler(row, sources):
        return
    for text in set_by[0] if row.value.repeated else set_by[0][-1:]:
        if row.metavar or row.value.read(text.value):
            yield tuple(words_of(row, text.value, row.flag))


def _comes_from_scheduler(row: Row, sources: Sequence[Layer]) -> bool:
    if row.name == "nnodes":
        nodes = value_of("nnodes", sources).value
        return bool(nodes.fewest == nodes.most)
    return row.name in FROM_SCHEDULER and row.name not in sources[0]
