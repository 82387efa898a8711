"""The lines of a job's script that no scheduler has its own words for."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from clusterrun.domain.submissions.submission import ContainerRuntime, NodeCommand, Submission
from clusterrun.job.sources import ENV_VARIABLE
from clusterrun.submitting.shell import command_lines, quoted


def setup_lines(job: Submission) -> list[str]:
    """Return the lines before the job starts: modules, then the user's own."""
    modules = (
        [f"module load {' '.join(map(quoted, job.modules.value))}"] if job.modules.value else []
    )
    own = [*modules, *(line.value for line in job.setup)]
    # Without the modules or the environment, the job would fail in a way that is harder to read.
    lines = [*_unset(job), *_env(job), *(["set -e", *own] if own else [])]
    return [*lines, ""] if lines else []


def _env(job: Submission) -> Iterator[str]:
    if job.command.env:
        yield "# What --env says: all users of a node can read its command lines."
        yield f"export {ENV_VARIABLE}={quoted(job.command.env)}"


def _unset(job: Submission) -> Iterator[str]:
    if job.command.unset:
        yield "# Set where the job was submitted; here the scheduler's own values count."
        yield f"unset {' '.join(job.command.unset)}"


def words_of(command: NodeCommand) -> Iterator[Sequence[str]]:
    """Yield the words of clusterrun's command line, quoted, in groups that stay on one line."""
    yield [quoted(word) for word in command.launcher]
    for option in command.options:
        yield [quoted(word) for word in option]
    script, *args = (quoted(word) for word in command.words)
    yield [script]
    yield from ([word] for word in args)


def in_container(job: Submission) -> Iterator[Sequence[str]]:
    """Yield the words that start apptainer, if that is the runtime."""
    if not job.image.value or job.container.value is not ContainerRuntime.APPTAINER:
        return
    yield ["apptainer", "exec"]
    gpus = job.gpus_per_node.value
    if gpus is None or gpus.number:
        # NVIDIA's and AMD's libraries; apptainer warns of the one that is missing.
        yield ["--nv"]
    yield ["--pwd", '"$PWD"', "--bind", '"$PWD"']
    for mount in job.mounts.value:
        yield ["--bind", quoted(mount)]
    yield [quoted(job.image.value)]


class Places(Struct, frozen=True):
    """How a script learns where it runs."""

    hosts: str
    """The command that prints the nodes, one on each line, this one first."""
    number: str
    """The number of the job, as shell arithmetic has it."""


def started_from_here(job: Submission, others: str, places: Places) -> list[str]:
    """Return the lines that start an agent on each node if the scheduler starts the first one only.

    The agent of this node ends with the code of the job, as all of them do.

    Args:
        job: what runs.
        others: what starts "${command[@]}" on all other nodes, and does not wait.
        places: how the nodes are known.

    """
    words, before = [*words_of(job.command)], [*in_container(job)]
    if job.nodes.value == 1:
        command = command_lines([["exec"], *before, *words])
        return ["# exec: signals and the exit code are those of clusterrun.", *command]
    port = f"$((20000 + {places.number} % 9000))"
    given = {option[0] for option in job.command.options}
    # Jobs that share a node must not meet at one port.
    meeting = [
        '--hosts "$hosts"',
        *([] if "--master-port" in given else [f'--master-port "{port}"']),
    ]
    command = command_lines([["command=("], *before, words[0], meeting, *words[1:]])
    command[0] = command[0].replace("( ", "(")
    command[-1] += ")"
    return [
        f"hosts=$({places.hosts} | paste -sd,)",
        *command,
        "",
        "# Bash waits for the agent, which gets the signal, too.",
        "trap : TERM INT USR1 USR2",
        "# The agents of the other nodes; that of this one has the exit code of the job.",
        others,
        "code=0",
        '"${command[@]}" || code=$?',
        "wait",
        'exit "$code"',
    ]
