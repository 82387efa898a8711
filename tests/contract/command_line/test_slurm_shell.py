"""A shell of ``srun --pty bash`` is distinguished from a task by its terminal and process group."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.captured import captured
from tests.contract.launched import COMMAND
from tests.contract.shell import BASH, Shell

DRY_RUN = (COMMAND, "--dry-run", "--no-python", "true")

SHELL_WITHOUT_SRUN = r"nnodes +1 +a shell without srun"
TASK_OF_SRUN = r"nnodes +2 +SLURM_STEP_NUM_NODES"


@contextmanager
def srun_at_terminal(folder: Path, words: tuple[str, ...]) -> Iterator[Shell]:
    """Yield what ``srun -N2 --pty WORDS`` starts as task 0, the session leader of its terminal."""
    shell = Shell(folder, words, **captured("pty_nodes.0"))
    try:
        yield shell
    finally:
        shell.close()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{}", SHELL_WITHOUT_SRUN),
        ("bash -c '{}; true'", SHELL_WITHOUT_SRUN),
        ("{} < /dev/null 2>&1 | cat", SHELL_WITHOUT_SRUN),
        # A task that srun starts in that shell inherits its variables, but has no terminal.
        ("setsid --wait {}", TASK_OF_SRUN),
    ],
)
def test_command_in_the_shell_of_srun(tmp_path: Path, line: str, found: str) -> None:
    """It is a one-node job, because the shells of the other tasks have ended."""
    with srun_at_terminal(tmp_path, BASH) as shell:
        shell.type(line.format(" ".join(DRY_RUN)))

        shell.expect(found)


@pytest.mark.parametrize("words", [DRY_RUN, ("bash", "-c", f"{' '.join(DRY_RUN)}; true")])
def test_command_run_by_srun(tmp_path: Path, words: tuple[str, ...]) -> None:
    """With ``srun --pty clusterrun``, also in a script, all tasks run it."""
    with srun_at_terminal(tmp_path, words) as task:
        task.expect(TASK_OF_SRUN)
