"""Completion in bash, zsh and fish: click's scripts, and its answers to them."""

from collections.abc import Callable, Iterator

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
)

from clusterrun.cli.help import ANSWERS, TOPICS
from clusterrun.cli.options import instruction_variable
from clusterrun.cli.spelling import full_name
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.detection import DETECTION
from clusterrun.sources.options.option import Kind, Option, flag
from clusterrun.sources.options.rows.workers import CLUSTER
from clusterrun.sources.options.suggestions import COMMANDS, did_you_mean
from clusterrun.sources.options.table import OPTIONS


class _Bash(BashComplete):
    """Completes to words and files at one place, where click's own script has either."""

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
"""What a metavar calls a file; DIR is a folder."""

Values = Callable[[click.Context, click.Parameter, str], list["CompletionItem[str]"]]


class _Command(click.Command):
    """Offers nothing of ours behind SCRIPT, where all is the script's; behind a command of ours, all."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem[str]"]:
        if ctx.params.get("words") and ctx.params["words"][0] not in COMMANDS:
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, _dashed(incomplete))


def completion_script(shell: str, called: str) -> str:
    """Return the script that a shell evaluates, once or in its start-up file.

    Raises:
        UsageError: there is none for such a shell.

    """
    if shell not in SHELLS:
        raise UsageError(
            f"--print-completion: there is none for {shell!r}",
            did_you_mean(shell, SHELLS) or f"give one of {', '.join(SHELLS)}",
        )
    # The command that completes is looked up again by its name each time.
    return _completer(shell, called).source()


def completions(instruction: str, called: str) -> str:
    """Return what the script of ``completion_script`` understands.

    Args:
        instruction: what its variable holds, ``bash_complete``.
        called: the command's name.

    Raises:
        UsageError: it is no instruction of such a script's.

    """
    shell, _, wanted = instruction.partition("_")
    if shell not in SHELLS or wanted != "complete":
        variable = instruction_variable(called)
        raise UsageError(
            f"{variable} is {instruction!r}, which no completion script says", f"unset {variable}"
        )
    completer = _completer(shell, called)
    args, incomplete = completer.get_completion_args()
    # bash takes "--name=VALUE" for three words.
    spelled = [_in_full(arg) for arg in args if arg != "="]
    items = completer.get_completions(spelled, incomplete)
    return "\n".join(map(completer.format_completion, items))


def _completer(shell: str, called: str) -> ShellComplete:
    return SHELLS[shell](_command(called), {}, called, instruction_variable(called))


def _dashed(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word


def _in_full(word: str) -> str:
    head, equals, value = word.partition("=")
    return f"--{full_name(head[2:])}{equals}{value}" if head.startswith("--") else word


def _command(called: str) -> click.Command:
    flags = [_flag(option, name) for option in OPTIONS for name in option.names]
    told = dict(ANSWERS)
    answers = [
        click.Option(
            ["-h", "--help", "help"],
            is_flag=False,
            flag_value="",
            help=told["-h, --help [GROUP|all]"],
            shell_complete=_one_of(TOPICS),
        ),
        click.Option(["--version", "version"], is_flag=True, help=told["--version"]),
        click.Option(
            ["--print-completion", "print_completion"],
            help=told["--print-completion SHELL"],
            shell_complete=_one_of(tuple(SHELLS)),
        ),
    ]
    words = click.Argument(["words"], nargs=-1, shell_complete=_first_words)
    return _Command(
        called,
        params=[*flags, *answers, words],
        add_help_option=False,
        context_settings={"allow_interspersed_args": False},
    )


def _flag(option: Option[object], name: str) -> click.Option:
    spellings = [flag(name), name]
    if option.short and name == option.name:
        spellings.append(f"-{option.short}")
    if option.kind in {Kind.FLAG, Kind.OPTIONAL}:
        return click.Option(spellings, is_flag=True, help=option.help)
    return click.Option(
        spellings,
        multiple=option.kind is Kind.REPEATED,
        help=option.help,
        shell_complete=_one_of(tuple(_choices(option)), _kind_of_path(option)),
    )


def _choices(option: Option[object]) -> Iterator[str]:
    """Yield the words that a metavar such as ``N|auto|gpu`` spells out, and the clusters' names."""
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


def _first_words(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list["CompletionItem[str]"]:
    """Return what completes to SCRIPT, or to a command of ours in its place."""
    is_first = not context.params.get("words")
    return _one_of(COMMANDS if is_first else (), "file")(context, parameter, incomplete)


def _one_of(words: tuple[str, ...], path: str = "") -> Values:
    """Return what completes to one of ``words``, or to a ``path``: "file" or "dir"."""

    def complete(
        _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list["CompletionItem[str]"]:
        found = [CompletionItem(word) for word in words if word.startswith(incomplete)]
        return [*found, CompletionItem(incomplete, type=path)] if path else found

    return complete
