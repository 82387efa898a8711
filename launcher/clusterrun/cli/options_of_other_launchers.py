"""The error for an option of another launcher."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from clusterrun.cli.mistakes import behind_script
from clusterrun.errors import UsageError
from clusterrun.job.suggestions import command
from clusterrun.sources.other_launchers.foreign_options import Foreign, foreign_option
from clusterrun.sources.other_launchers.pasted_lines import NODE_STARTERS

NAME_AND_VALUE = frozenset({"mca", "pmixmca", "prtemca", "genv"})
"""Options of mpirun that take a name and a value as two words."""


def foreign_option_error(words: Sequence[str]) -> UsageError | None:
    """Return the error for the option with which ``words`` begin; None if no launcher has it."""
    typed = words[0].partition("=")[0]
    # A short option may have its value attached: -N2.
    for spelled in (typed,) if typed.startswith("--") else (typed, typed[:2]):
        if found := foreign_option(spelled.lstrip("-").replace("_", "-")):
            have = "have" if len(found) > 1 else "has"
            message = f"there is no option {spelled}; {' and '.join(found)} {have} one"
            return UsageError(message, "\n".join(_hints(spelled, found, words)))
    return None


def _hints(typed: str, foreign: Foreign, words: Sequence[str]) -> Iterator[str]:
    yield from _instead(typed, foreign)
    script = next((word for word in words[1:] if word.endswith(".py")), "")
    if starters := [launcher for launcher in foreign if launcher in NODE_STARTERS]:
        # The next word is its value, unless the value is attached, or the word is a flag or the script.
        has_value = words[0] == typed and not "".join(words[1:2]).startswith(("-", script or "-"))
        values = 2 if typed.lstrip("-") in NAME_AND_VALUE else 1
        line = command(
            script or "train.py", before=(starters[-1], *words[: 1 + has_value * values])
        )
        yield f"an option of {' or '.join(starters)} goes before clusterrun:\n  {line}"
    if script and _mentions(script, typed):
        yield behind_script(script, typed)


def _instead(typed: str, foreign: Foreign) -> Iterator[str]:
    if len(set(foreign.values())) == 1:
        yield next(iter(foreign.values()))
        return
    yield from (f"{launcher}'s {typed}: {instead}" for launcher, instead in foreign.items())


def _mentions(script: str, typed: str) -> bool:
    with suppress(OSError):
        text = Path(script).read_text(encoding="utf-8", errors="replace")
        return typed.replace("_", "-") in text.replace("_", "-")
    return False
