"""``clusterrun --print-completion SHELL``: click's script for a shell, and what this script asks."""

from collections.abc import Callable, Iterator, Mapping

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
)

from clusterrun.cli.commands.help import TOPICS
from clusterrun.cli.commands.table import FLAGS, HELP, PRINT_COMPLETION, RUN, WORDS, Command
from clusterrun.cli.parsing import command_spellings, completion_variable, spellings
from clusterrun.cli.printing import print_text
from clusterrun.cli.spelling import full_name
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.detection import DETECTION
from clusterrun.sources.command_line import CommandLine
from clusterrun.sources.options.option import Kind, Option
from clusterrun.sources.options.rows.workers import CLUSTER
from clusterrun.sources.options.suggestions import did_you_mean


class _Bash(BashComplete):
    """Offers words and files together; click's own script offers one of the two."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value
    COMPREPLY=()
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \\
        %(complete_var)s=bash_complete $1)
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            plain) COMPREPLY+=("$value");;
            dir) compopt -o filenames; COMPREPLY+=($(compgen -A directory -- "$value"));;
            file) compopt -o filenames; COMPREPLY+=($(compgen -A file -- "$value"));;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


SHELLS: dict[str, type[ShellComplete]] = {
    "bash": _Bash,
    "zsh": ZshComplete,
    "fish": FishComplete,
}

FILES = {"FILE", "PATH"}
"""Metavars of options that take a file; DIR is a folder."""

Values = Callable[[click.Context, click.Parameter, str], list["CompletionItem[str]"]]


class _Command(click.Command):
    """Offers files after SCRIPT, where all options are the script's."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem[str]"]:
        if ctx.params.get("words"):
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, _dashed(incomplete))


def execute(line: CommandLine, _environ: Mapping[str, str], called: str) -> int:
    return print_text(completion_script(str(line.flags["print_completion"]), called))


def completion_script(shell: str, called: str) -> str:
    """Return the script that a shell evaluates, once or in its start-up file.

    Raises:
        UsageError: there is none for this shell.

    """
    if shell not in SHELLS:
        raise UsageError(
            f"--print-completion: {shell!r} is not a shell that clusterrun knows",
            did_you_mean(shell, SHELLS) or f"give one of {', '.join(SHELLS)}",
        )
    return _completer(shell, called, RUN).source()


def completions(instruction: str, called: str) -> str:
    """Return what a shell offers, in the form that the script of ``completion_script`` reads.

    Args:
        instruction: the value of the script's variable, ``bash_complete``.
        called: the program's name.

    Raises:
        UsageError: no such script sets that value.

    """
    shell, _, wanted = instruction.partition("_")
    if shell not in SHELLS or wanted != "complete":
        variable = completion_variable(called)
        raise UsageError(
            f"{variable} is {instruction!r}, which no completion script sets", f"unset {variable}"
        )
    completer = _completer(shell, called, RUN)
    args, incomplete = completer.get_completion_args()
    # bash splits "--name=VALUE" into three words.
    args = [_in_full(arg) for arg in args if arg != "="]
    command, words = _named(completer.cli, args)
    if command is not RUN:
        completer, args = _completer(shell, called, command), words
    items = completer.get_completions(args, incomplete)
    return "\n".join(map(completer.format_completion, items))


def _named(root: click.Command, args: list[str]) -> tuple[Command, list[str]]:
    """Return the command whose word is the first that is no option, and the words after it."""
    context = root.make_context("clusterrun", [*args], resilient_parsing=True)
    words = context.params["words"] or ()
    if not words or words[0] not in WORDS:
        return RUN, args
    return WORDS[words[0]], list(words[1:])


def _completer(shell: str, called: str, command: Command) -> ShellComplete:
    return SHELLS[shell](_click_command(command, called), {}, called, completion_variable(called))


def _dashed(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word


def _in_full(word: str) -> str:
    head, equals, value = word.partition("=")
    return f"--{full_name(head[2:])}{equals}{value}" if head.startswith("--") else word


def _click_command(command: Command, called: str) -> click.Command:
    flags = [_flag(option, name) for option in command.options for name in option.names]
    words = click.Argument(
        ["words"], nargs=-1, shell_complete=_words if command is RUN else _one_of(())
    )
    return _Command(
        called,
        params=[*flags, *map(_command_flag, FLAGS), words],
        add_help_option=False,
        context_settings={"allow_interspersed_args": False},
    )


def _command_flag(command: Command) -> click.Option:
    typed = command_spellings(command)
    words = {HELP.name: TOPICS, PRINT_COMPLETION.name: tuple(SHELLS)}
    values = _one_of(words.get(command.name, ()))
    if command.may_lack_value:
        return click.Option(
            typed, is_flag=False, flag_value="", help=command.summary, shell_complete=values
        )
    is_flag = not command.metavar
    return click.Option(typed, is_flag=is_flag, help=command.summary, shell_complete=values)


def _flag(option: Option[object], name: str) -> click.Option:
    if option.kind in {Kind.FLAG, Kind.OPTIONAL}:
        return click.Option(spellings(option, name), is_flag=True, help=option.help)
    return click.Option(
        spellings(option, name),
        multiple=option.kind is Kind.REPEATED,
        help=option.help,
        shell_complete=_one_of(tuple(_choices(option)), _kind_of_path(option)),
    )


def _choices(option: Option[object]) -> Iterator[str]:
    """Yield the words of a metavar such as ``N|auto|gpu``, and the names of clusters."""
    yield from (
        word
        for word in option.metavar.split("|")
        if word.replace("-", "").isidentifier() and word.islower()
    )
    if option is CLUSTER:
        yield from dict.fromkeys(known.name for known in DETECTION)


def _kind_of_path(option: Option[object]) -> str:
    kinds = set(option.metavar.split("|"))
    if kinds & FILES:
        return "file"
    return "dir" if "DIR" in kinds else ""


def _words(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list["CompletionItem[str]"]:
    """Return the completion to SCRIPT or to a command in its place, or to SCRIPT's arguments."""
    commands = () if context.params.get("words") else tuple(WORDS)
    return _one_of(commands, "file")(context, parameter, incomplete)


def _one_of(words: tuple[str, ...], path: str = "") -> Values:
    """Return the completion to one of ``words`` or to a ``path``, "file" or "dir"."""

    def complete(
        _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list["CompletionItem[str]"]:
        found = [CompletionItem(word) for word in words if word.startswith(incomplete)]
        return [*found, CompletionItem(incomplete, type=path)] if path else found

    return complete
