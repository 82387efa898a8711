"""Errors for a command line that cannot be split into flags, values and a script."""

from collections.abc import Sequence

from clusterrun.cli.commands.table import FLAG_OPTIONS
from clusterrun.cli.spelling import flag_names, full_name, is_flag, meanings
from clusterrun.errors import UsageError
from clusterrun.job.declaring import flag
from clusterrun.job.suggestions import closest, command
from clusterrun.sources.options.option import Option
from clusterrun.sources.settings import Flags


def unknown_flag(
    name: str, argv: Sequence[str], options: Sequence[Option[object]], *, takes_script: bool
) -> UsageError:
    """Return the error for flag ``name`` of ``argv``, which click gives in its full spelling."""
    known = flag_names(options)
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
        flags = " or ".join(f"--{flag}" for flag in meant)
        return UsageError(f"{typed} could mean {flags}", "type one of them in full")
    hint = _unknown_hint(typed, argv[place + 1 :], known, takes_script=takes_script)
    return UsageError(f"there is no option {typed}", hint)


def flag_value_error(name: str, options: Sequence[Option[object]]) -> UsageError:
    """Return the error for flag ``name``, which lacks a value, or has one and takes none."""
    rows = [*options, *FLAG_OPTIONS]
    typed = (row for row in rows if name in {f"-{row.short}", *(flag(each) for each in row.names)})
    metavar = next((row.metavar for row in typed), "")
    if not metavar:
        return UsageError(f"{name} takes no value", f"type {name} alone")
    return _needs_value(name, metavar)


def expect_values(flags: Flags, argv: Sequence[str], options: Sequence[Option[object]]) -> None:
    """Check that no flag of ``argv`` has taken the next flag, or a trailing blank, for its value.

    Raises:
        UsageError: one has, because its own value is missing.

    """
    # A shell makes a word of the blank in "\ " and ends the line there.
    if len(argv) > 1 and argv[-1].isspace() and argv[-1] in flags.values():
        from clusterrun.sources.programs.scripts import BLANK_AFTER_BACKSLASH

        raise UsageError(f"{argv[-2]} needs a value, and has a blank", BLANK_AFTER_BACKSLASH)
    for option in options:
        for name in option.names:
            value = flags.get(name)
            if isinstance(value, str) and is_flag(value):
                raise _needs_value(flag(name), option.metavar, f", and {value} is an option")


def behind_script(script: str, typed: str) -> str:
    """Return the hint for an option of the script that was typed before it."""
    return f"an option of {script} goes after it:\n  {command(script, typed)}"


def _is_spelling(word: str, name: str, known: Sequence[str]) -> bool:
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
