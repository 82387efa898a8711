"""The shell of ``srun --pty bash``, told from a task by its terminal and process groups."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.captured import captured
from tests.contract.launched import COMMAND
from tests.contract.shell import BASH, Shell

DRY_RUN = (COMMAND, "--dry-run", "--no-python", "true")

IN_A_SHELL = r"nnodes +1 +a shell without srun"
A_TASK = r"nnodes +2 +SLURM_STEP_NUM_NODES"


@contextmanager
def started_by_srun(folder: Path, words: tuple[str, ...]) -> Iterator[Shell]:
    """Return what ``srun -N2 --pty WORDS`` starts as task 0: it leads the session of its terminal."""
    shell = Shell(folder, words, **captured("pty_nodes.0"))
    try:
        yield shell
    finally:
        shell.close()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{}", IN_A_SHELL),
        ("bash -c '{}; true'", IN_A_SHELL),
        ("{} < /dev/null 2>&1 | cat", IN_A_SHELL),
        # As srun in that shell starts tasks: they inherit its variables, and have no terminal.
        ("setsid --wait {}", A_TASK),
    ],
)
def test_typed_at_the_shell(tmp_path: Path, line: str, found: str) -> None:
    """The shells of the other tasks have ended: no command of theirs joins."""
    with started_by_srun(tmp_path, BASH) as shell:
        shell.type(line.format(" ".join(DRY_RUN)))

        shell.expect(found)


@pytest.mark.parametrize("words", [DRY_RUN, ("bash", "-c", f"{' '.join(DRY_RUN)}; true")])
def test_a_task_at_a_terminal(tmp_path: Path, words: tuple[str, ...]) -> None:
    """``srun --pty clusterrun``, perhaps by a script: all tasks run it."""
    with started_by_srun(tmp_path, words) as task:
        task.expect(A_TASK)
