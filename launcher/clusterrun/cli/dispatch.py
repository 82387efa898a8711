"""Which command a command line names, and the options that it gives to it."""

from collections.abc import Mapping, Sequence

from clusterrun.cli.commands.table import FLAGS, HELP, RUN, WORDS, Command
from clusterrun.cli.parsing import parse
from clusterrun.errors import UsageError
from clusterrun.job.declaring import flag
from clusterrun.job.file_kinds import FileKind, kind_of
from clusterrun.job.suggestions import closest
from clusterrun.sources.settings import CommandLine

PROGRAM_OPTIONS = {"module", "no_python", "run_path"}
"""With one of these, a first word such as ``topo`` is a module or a program of that name."""


def find_command(
    argv: Sequence[str], called: str, commands: Mapping[str, Command] = WORDS
) -> tuple[Command, CommandLine]:
    """Return the command, and its options and words without the command's own.

    ``torchrun`` has no commands that are words.

    Raises:
        UsageError: an option is unknown, lacks its value, or has one that it does not take.

    """
    line = parse(argv, called)
    command = _flag_command(line) or _word_command(line, called, commands)
    if command is RUN or command.is_flag:
        return command, line
    if not command.takes_script and {"-h", "--help"} & set(line.words[1:]):
        return HELP, CommandLine({HELP.name: command.typed}, ())
    line = _with_options_after(command, line, called)
    if HELP.name in line.flags:
        return HELP, CommandLine({HELP.name: command.typed}, ())
    return _flag_command(line) or command, line


def nearest_command(line: CommandLine) -> str:
    """Return "did you mean clusterrun NAME?" if SCRIPT is no file, but nearly a command; else ""."""
    word = line.words[0] if line.words else ""
    # Two letters are near to any short word: ls to logs.
    if (
        len(word) <= 2
        or PROGRAM_OPTIONS & line.flags.keys()
        or kind_of(word) is not FileKind.NOTHING
    ):
        return ""
    nearest = closest(word, WORDS)
    return f"did you mean clusterrun {nearest}?" if nearest else ""


def _flag_command(line: CommandLine) -> Command | None:
    return next((command for command in FLAGS if command.name in line.flags), None)


def _word_command(line: CommandLine, called: str, commands: Mapping[str, Command]) -> Command:
    if called == "torchrun" or not line.words or PROGRAM_OPTIONS & line.flags.keys():
        return RUN
    return commands.get(line.words[0], RUN)


def _with_options_after(command: Command, line: CommandLine, called: str) -> CommandLine:
    """Return the options before and after the command's word; those after it win."""
    words = line.words[1:]
    names = {name for option in command.all_options for name in option.names}
    try:
        after = parse(words, called, command.all_options, takes_script=command.takes_script)
    except UsageError as error:
        hint = command.as_typed(error.hint) or f"type clusterrun {command.typed} --help"
        raise UsageError(error.message, _or_script(command, hint, words)) from None
    if not_taken := [flag(name) for name in line.flags if name not in names]:
        raise UsageError(
            f"clusterrun {command.typed} has no option {not_taken[0]}",
            f"type clusterrun {command.typed} --help",
        )
    if len(after.words) > bool(command.word) and not command.takes_script:
        takes = f"one {command.word}" if command.word else "only options"
        raise UsageError(
            f"clusterrun {command.typed} takes {takes}, and {after.words[-1]} is none",
            _or_script(command, f"type clusterrun {command.typed} --help", words),
        )
    return CommandLine({**line.flags, **after.flags}, after.words)


def _or_script(command: Command, hint: str, words: Sequence[str]) -> str:
    if kind_of(command.typed) is FileKind.NOTHING:
        return hint
    from shlex import join

    line = join(["clusterrun", f"./{command.typed}", *words])
    return f"{hint}\nto run the file {command.typed} instead:\n  {line}"
