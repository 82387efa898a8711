"""The job to submit: its resources, and the command of each node."""

import shlex
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from clusterrun.clients.submit import launcher_command, script_of
from clusterrun.errors import UsageError
from msgspec.structs import replace

from tests.sessions import Session, sessions_of
from tests.submitting.submitted import SUBMITTING_PROCESS, script, submission


def test_directive_with_line_break_is_refused() -> None:
    """A second line would end the directives; a trailing line feed is allowed."""
    given = ("--gpus-per-node", "1", "--directive")

    assert "#SBATCH --nice\n\n" in script(*given, "--nice\n", "train.py")
    with pytest.raises(UsageError, match=r"^--directive: .* is not one line"):
        script(*given, "--nice\n--hold\n", "train.py")


@pytest.mark.parametrize(
    "session",
    sessions_of(Path(__file__).parent / "submissions.txt", usual="clusterrun submit"),
    ids=str,
)
def test_session(session: Session) -> None:
    """What is submitted: values of the job and directives, or the error."""
    session.write_files()

    assert (*session_output(session),) == session.expected


def session_output(session: Session) -> Iterator[str]:
    words = shlex.split(session.line)
    at = words.index("submit")
    try:
        found = submission(
            *words[at + 1 :], environ=dict(word.split("=", 1) for word in words[: at - 1])
        )
    except UsageError as error:
        yield f"error: {error.message}"
        yield from (f"  {line}" for line in error.hint.splitlines())
        return
    text = script_of(found)
    for name, _, expected in (line.partition(": ") for line in session.expected):
        match name:
            case "directive":
                value = expected if f"#SBATCH {expected}\n" in text else text
            case "options":
                value = " ".join(chain(*found.options))
            case "words":
                value = shlex.join(found.words)
            case "unset":
                value = " ".join(sorted(found.unset))
            case _:
                value = str(getattr(found, name)).replace("\n", "|")
        yield f"{name}: {value or repr(value)}"


def test_launcher_is_the_submitting_clusterrun(folder: Path) -> None:
    """It is started by its path, or by its interpreter if that has no script beside it."""
    python = str(folder / "python")
    without = launcher_command(python)
    (folder / "clusterrun").touch()

    assert without == (python, "-m", "clusterrun")
    assert launcher_command(python) == (str(folder / "clusterrun"),)


@pytest.mark.parametrize(
    ("words", "chosen"),
    [((), True), (("--setup", "module load x"), False), (("--python", "python3"), False)],
)
def test_active_environment_at_submission(
    folder: Path, words: tuple[str, ...], *, chosen: bool
) -> None:
    """The job gets the path of its interpreter, unless --setup chooses an environment."""
    active = folder / "active"
    for path in (active / "bin/python", active / "lib/python3.12/site-packages/torch/__init__.py"):
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    process = replace(SUBMITTING_PROCESS, has_torch=lambda: False)
    given = ("--exclusive", *words, "train.py")

    job = submission(*given, environ={"VIRTUAL_ENV": str(active)}, process=process)

    assert (("--python", f"{active}/bin/python") in job.options) is chosen
