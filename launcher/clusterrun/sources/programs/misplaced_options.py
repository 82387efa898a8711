"""Warnings for options of clusterrun after SCRIPT, where they go to the script."""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from clusterrun.domain.job import Program, ProgramKind
from clusterrun.job.declaring import Row
from clusterrun.job.file_kinds import FileKind, kind_of
from clusterrun.job.options import NAMES


def misplaced_options(program: Program) -> Iterator[str]:
    """Yield a warning for each argument of ``program`` with the name of an option of clusterrun.

    An option that many scripts have, such as ``--config``, is taken for the script's own if the
    script's text has that name.
    """
    script = program.name
    if program.args[-1:] == (" ",):
        yield (
            f"the last argument of {script} is a blank; if the line should continue, remove the"
            " blank after the \\"
        )
    found = list(_own_options(program.args))
    text = _text(program) if found else None
    for row, word in found:
        goes = f"{word} after {script} goes to {script}"
        if text is not None and not _mentions(text, row):
            yield f"{goes}, which does not use it: type it before {script}"
        elif not row.option.common_in_scripts:
            yield f"{goes}; clusterrun's own {word} must come before it"


def _own_options(args: tuple[str, ...]) -> Iterator[tuple[Row, str]]:
    # After a "--" the user has marked the arguments as the script's.
    for arg in takewhile(lambda arg: arg != "--", args):
        word = arg.partition("=")[0]
        name = word.removeprefix("--").replace("-", "_")
        if word.startswith("--"):
            yield from ((row, word) for row in (NAMES.get(name),) if row)


def _text(program: Program) -> str | None:
    """Return the script's text; None if it is not a Python file."""
    if (
        program.kind not in {ProgramKind.SCRIPT, ProgramKind.RUN_PATH}
        or kind_of(program.name) is not FileKind.FILE
    ):
        return None
    return Path(program.name).read_text(encoding="utf-8", errors="replace")


def _mentions(text: str, row: Row) -> bool:
    return any(name in text or name.replace("_", "-") in text for name in row.names)
