"""The lines of a job's script that no scheduler has its own words for."""

from collections.abc import Iterator, Sequence

from clusterrun.domain.submissions.submission import ContainerRuntime, NodeCommand, Submission
from clusterrun.submitting.shell import quoted


def setup_lines(job: Submission) -> list[str]:
    """Return the lines before the job starts: modules, then the user's own."""
    modules = (
        [f"module load {' '.join(map(quoted, job.modules.value))}"] if job.modules.value else []
    )
    lines = [*modules, *(line.value for line in job.setup)]
    # Without the modules or the environment, the job would fail in a way that is harder to read.
    return ["set -e", *lines, ""] if lines else []


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
