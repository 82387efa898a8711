"""Errors for a command line that cannot be split into flags, values and a script."""

from collections.abc import Mapping, Sequence

from clusterrun.errors import UsageError
from clusterrun.job.declaring import Row, flag
from clusterrun.job.sources import Layer
from clusterrun.job.suggestions import closest, command


def unknown_flag(
    name: str, argv: Sequence[str], rows: Mapping[str, Row], *, takes_script: bool
) -> UsageError:
    """Return the error for flag ``name`` of ``argv``, which click gives in its full spelling."""
    from clusterrun.cli.splitting import flags_of, meanings

    known = flags_of(rows)
    place = next((n for n, word in enumerate(argv) if _is_spelling(word, name, known)), 0)
    typed = argv[place].partition("=")[0]
    from clusterrun.cli.options_of_other_launchers import foreign_option_error
    from clusterrun.job.gone import GONE

    if instead := GONE.get(name.removeprefix("--").replace("-", "_")):
        return UsageError(f"there is no option {typed} any more", instead)
    is_short = not typed.startswith("--")
    # -f is one of mpirun's, and of logs.
    if (takes_script or not is_short) and (foreign := foreign_option_error(argv[place:])):
        return foreign
    meant = meanings(name.removeprefix("--"), known)
    if meant:
        flags = " or ".join(f"--{each}" for each in meant)
        return UsageError(f"{typed} could mean {flags}", "type one of them in full")
    hint = _unknown_hint(typed, argv[place + 1 :], known, takes_script=takes_script)
    return UsageError(f"there is no option {typed}", hint)


def flag_value_error(name: str, rows: Mapping[str, Row]) -> UsageError:
    """Return the error for flag ``name``, which lacks a value, or has one and takes none."""
    typed = (
        row for row in rows.values() if name in {f"-{row.option.short}", *map(flag, row.names)}
    )
    metavar = next((row.metavar for row in typed), "")
    if not metavar:
        return UsageError(f"{name} takes no value", f"type {name} alone")
    return _needs_value(name, metavar)


def expect_values(options: Layer, argv: Sequence[str], rows: Mapping[str, Row]) -> None:
    """Check that no option has taken the next flag, or a trailing blank of ``argv``, for its value.

    Raises:
        UsageError: one has, because its own value is missing.

    """
    from clusterrun.cli.splitting import is_flag

    # A shell makes a word of the blank in "\ " and ends the line there.
    last = {texts[-1].value for texts in options.values()}
    if len(argv) > 1 and argv[-1].isspace() and argv[-1] in last:
        from clusterrun.sources.programs.scripts import BLANK_AFTER_BACKSLASH

        raise UsageError(f"{argv[-2]} needs a value, and has a blank", BLANK_AFTER_BACKSLASH)
    for name, texts in options.items():
        for text in texts:
            if is_flag(text.value):
                raise _needs_value(
                    text.origin, rows[name].metavar, f", and {text.value} is an option"
                )


def behind_script(script: str, typed: str) -> str:
    """Return the hint for an option of the script that was typed before it."""
    return f"an option of {script} goes after it:\n  {command(script, typed)}"


def _is_spelling(word: str, name: str, known: Sequence[str]) -> bool:
    from clusterrun.cli.splitting import full_name

    if name.startswith("--"):
        head = word.partition("=")[0]
        return head.startswith("--") and f"--{full_name(head[2:], known=known)}" == name
    return word.startswith("-") and not word.startswith("--") and name[1:] in word


def _unknown_hint(
    typed: str, rest: Sequence[str], known: Sequence[str], *, takes_script: bool
) -> str:
    nearest = closest(typed.lstrip("-").replace("_", "-"), known)
    hints = [f"did you mean --{nearest}?"] if nearest else []
    script = next((word for word in rest if word.endswith(".py")), "")
    if not takes_script:
        return "\n".join(hints)
    if script:
        hints.append(behind_script(script, typed))
    elif not nearest:
        hints.append(f"an option of the script goes after it:\n  {command('train.py', typed)}")
    return "\n".join(hints)


def _needs_value(name: str, metavar: str, but: str = "") -> UsageError:
    return UsageError(f"{name} needs a value{but}", f"type {name} {metavar}")
