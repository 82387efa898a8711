"""Options of clusterrun that stand after SCRIPT, where they are the script's."""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from clusterrun.domain.job import Program, ProgramKind
from clusterrun.sources.options.option import Option
from clusterrun.sources.options.table import OPTIONS
from clusterrun.sources.programs.file_kinds import FileKind, kind_of

BLANK_ARGUMENT = "the last argument of {} is a blank: if the line was to go on, its \\ must be its last character"


def misplaced_options(program: Program) -> tuple[str, ...]:
    """Return a warning for each argument of ``program`` that reads like an option of ours.

    An option that many scripts have, such as ``--config``, is taken for the script's own unless
    the script's text nowhere has that name.
    """
    found = list(_own_options(program.args))
    blank = (BLANK_ARGUMENT.format(program.name),) if program.args[-1:] == (" ",) else ()
    if not found:
        return blank
    text = _text(program)
    return blank + tuple(
        _warning(word, program.name, is_mentioned=text is None or _mentions(text, option))
        for option, word in found
        if not option.common_in_scripts or (text is not None and not _mentions(text, option))
    )


def _own_options(args: tuple[str, ...]) -> Iterator[tuple[Option[object], str]]:
    # A "--" of the script's own says that the user knows whose arguments these are.
    for arg in takewhile(lambda arg: arg != "--", args):
        word = arg.partition("=")[0]
        name = word.removeprefix("--").replace("-", "_")
        if word.startswith("--"):
            yield from ((option, word) for option in OPTIONS if name in option.names)


def _text(program: Program) -> str | None:
    """Return the script's text; None for what is not a file of Python."""
    if (
        program.kind not in {ProgramKind.SCRIPT, ProgramKind.RUN_PATH}
        or kind_of(program.name) is not FileKind.FILE
    ):
        return None
    return Path(program.name).read_text(encoding="utf-8", errors="replace")


def _mentions(text: str, option: Option[object]) -> bool:
    return any(name in text or name.replace("_", "-") in text for name in option.names)


def _warning(word: str, script: str, *, is_mentioned: bool) -> str:
    if is_mentioned:
        return f"{word} after {script} goes to {script}; clusterrun's own {word} belongs before it"
    return (
        f"{word} after {script} goes to {script}, which nowhere mentions it, and changes nothing"
        f" in clusterrun: type it before {script}"
    )
