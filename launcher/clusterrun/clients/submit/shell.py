"""The lines of a batch script that no scheduler has its own words for, as shellcheck likes them."""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from clusterrun.clients.submit.node_command import NodeCommand
from clusterrun.clients.submit.submission import Submission
from clusterrun.errors import UsageError
from clusterrun.job.sources import ENV_VARIABLE

WIDTH = 98
"""Of a line; a longer command is continued."""

SCHEMES = ("docker://", "oras://", "library://", "shub://", "docker-daemon:", "oci:")
"""How images begin that apptainer builds itself (apptainer-exec(1))."""

_SAFE = re.compile(r"[\w@%+=:,./-]+")


def quoted(word: str) -> str:
    """Return ``word`` as one word of a shell, which expands nothing in it."""
    if _SAFE.fullmatch(word):
        return word
    if re.search(r"['$`\\]", word):
        # In single quotes, shellcheck takes a $ or a \ for a mistake.
        return '"' + re.sub(r'(["\\$`])', r"\\\1", word) + '"'
    return f"'{word}'"


def command_lines(groups: Iterable[Sequence[str]]) -> list[str]:
    """Return a command of words that are quoted already, with line breaks between ``groups`` only."""
    first, *others = (" ".join(group) for group in groups)
    lines = [first]
    for text in others:
        if len(lines[-1]) + len(text) > WIDTH:
            lines.append(f"    {text}")
        else:
            lines[-1] += f" {text}"
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def clock(seconds: int) -> str:
    """Return a time limit as ``36:00:00``."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


def memory_text(mib: int) -> str:
    """Return a size in the largest unit that it is a whole number of: ``64G``, ``500M``."""
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


def setup_lines(job: Submission) -> list[str]:
    """Return the lines before the job starts: its variables, then the user's own lines."""
    lines = [*_unset(job), *_env(job)]
    if job.request.setup:
        # Without the environment, the job would fail in a way that is harder to read.
        lines += ["set -e", *job.request.setup]
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


def is_of_apptainer(image: str) -> bool:
    """Return whether apptainer starts the container of ``image``."""
    return image.endswith(".sif") or image.startswith(SCHEMES)


def in_apptainer(job: Submission, title: str) -> list[Sequence[str]]:
    """Return the words that start the container, quoted, in groups; [] without an image.

    Raises:
        UsageError: apptainer has no such image, and the scheduler ``title`` starts no others.

    """
    image = job.request.image
    if not image:
        return []
    if not is_of_apptainer(image):
        raise UsageError(
            f"{job.origins['image']}: {title} starts no containers, and {image} is not an image of"
            " apptainer",
            f"give a file that ends in .sif, or docker://{image}",
        )
    # NVIDIA's and AMD's libraries; apptainer warns of the one that is missing.
    libraries = [["--nv"]] if job.needs_gpus else []
    mounts = [["--bind", quoted(mount)] for mount in job.request.mounts]
    folder = ["--pwd", '"$PWD"', "--bind", '"$PWD"']
    return [["apptainer", "exec"], *libraries, folder, *mounts, [quoted(image)]]


class JobInShell(Struct, frozen=True):
    """How a script learns where it runs."""

    hosts: str
    """The command that prints the nodes, one on each line, this one first."""
    number: str
    """The number of the job, as shell arithmetic has it."""


def started_from_here(job: Submission, title: str, others: str, named: JobInShell) -> list[str]:
    """Return the lines that start an agent on each node if the scheduler starts the first one only.

    The agent of this node ends with the code of the job, as all of them do.

    Args:
        job: what runs.
        title: the scheduler's name.
        others: what starts "${command[@]}" on all other nodes, and does not wait.
        named: the job, for the shell.

    """
    words, before = [*words_of(job.command)], in_apptainer(job, title)
    if job.nodes == 1:
        command = command_lines([["exec"], *before, *words])
        return ["# exec: signals and the exit code are those of clusterrun.", *command]
    meeting = ['--hosts "$hosts"']
    if job.command.option("--master-port") is None:
        # Jobs that share a node must not meet at one port.
        meeting.append(f'--master-port "$((20000 + {named.number} % 9000))"')
    command = command_lines([["command=("], *before, words[0], meeting, *words[1:]])
    command[0] = command[0].replace("( ", "(")
    command[-1] += ")"
    return [
        f"hosts=$({named.hosts} | paste -sd,)",
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
