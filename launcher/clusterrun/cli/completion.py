"""``clusterrun --print-completion SHELL``: click's script for a shell, and the completions that it requests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
)

from clusterrun.cli.commands import COMMANDS_BY_WORD, PROGRAM_OPTIONS, RUN, Command, find_command
from clusterrun.cli.help import TOPICS
from clusterrun.cli.splitting import PRINTING
from clusterrun.errors import UsageError
from clusterrun.job.clusters.detection import CLUSTERS, NO_CLUSTER
from clusterrun.job.declarations import Row, flag
from clusterrun.job.file_kinds import names_in
from clusterrun.job.sources import CommandLine
from clusterrun.job.suggestions import MAX_NAMES_IN_FOLDER, did_you_mean


class _Bash(BashComplete):
    """Offers words and files together; click's own script offers only one of the two."""

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


class _Fish(FishComplete):
    """Shows whole descriptions; click's own script ends them at the first comma."""

    source_template = """\
function %(complete_func)s
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \
        COMP_CWORD=(commandline -t) %(prog_name)s)
    for completion in $response
        set -l parts (string split -m 1 "," $completion)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


SHELLS: dict[str, type[ShellComplete]] = {
    "bash": _Bash,
    "zsh": ZshComplete,
    "fish": _Fish,
}

SECONDS_TO_COMPLETE = 0.3
"""For agents to answer while a user waits for the shell."""

PLACEHOLDER = "\0"
"""Stands for the word that is being completed. No argument can contain it."""

Offer: TypeAlias = "CompletionItem[str]"


def completion_script(shell: str, called: str) -> str:
    """Return the completion script for a shell to evaluate.

    Raises:
        UsageError: there is no script for this shell.

    """
    if shell not in SHELLS:
        raise UsageError(
            f"--print-completion: {shell!r} is not a shell that clusterrun knows",
            did_you_mean(shell, SHELLS) or f"give one of {', '.join(SHELLS)}",
        )
    return _completer(shell, called).source()


def completions(instruction: str, called: str, environ: Mapping[str, str]) -> str:
    """Return the completions, in the form that the script of ``completion_script`` reads.

    ``instruction`` is the value of the script's variable: "bash_complete".

    Raises:
        UsageError: the instruction is unknown.

    """
    shell, _, wanted = instruction.partition("_")
    if shell not in SHELLS or wanted != "complete":
        variable = _variable(called)
        raise UsageError(
            f"{variable} is {instruction!r}, which no completion script sets", f"unset {variable}"
        )
    completer = _completer(shell, called)
    typed, begun = completer.get_completion_args()
    # bash splits "--name=VALUE" into three words.
    before = [word for word in typed if word != "="]
    offers = _offers(before, begun if begun != "=" else "", called, environ)
    return "\n".join(map(completer.format_completion, offers))


def _completer(shell: str, called: str) -> ShellComplete:
    # click uses its command only for completion, which _offers replaces.
    return SHELLS[shell](click.Command(called), {}, called, _variable(called))


def _variable(called: str) -> str:
    """Return click's name of the variable with which a shell requests completions."""
    return f"_{called.upper()}_COMPLETE"


def _offers(
    before: Sequence[str], begun: str, called: str, environ: Mapping[str, str]
) -> Iterable[Offer]:
    """Return what may follow the words ``before`` and begins with ``begun``."""
    head, equals, value = begun.partition("=")
    if begun.startswith("-") and not equals and "--" not in before:
        return _flags(before, begun, called)
    if equals and head.startswith("--"):
        before, begun = [*before, head], value
    # If an earlier word is wrong, the value of the last flag can still be completed.
    for words in (before, before[-1:]):
        try:
            command, line = find_command([*words, PLACEHOLDER], called)
        except UsageError:
            continue
        names = (name for name, texts in line.options.items() if texts[-1].value == PLACEHOLDER)
        if name := next(names, ""):
            row = {**command.rows, **PRINTING}[name]
            return _one_of(_choices(row), begun, row.value.completes)
        if words is before:
            return _words(command, line, begun, called, environ)
    return ()


def _flags(before: Sequence[str], begun: str, called: str) -> Iterator[Offer]:
    """Yield the flags that are not on the line yet; after SCRIPT, files."""
    try:
        command, line = find_command(before, called)
    except UsageError:
        command, line = RUN, CommandLine()
    if command.takes_script and line.words:
        yield CompletionItem(begun, type="file")
        return
    typed = {text.origin for texts in line.options.values() for text in texts}
    dashed = begun.replace("_", "-")
    for name, row in {**command.rows, **PRINTING}.items():
        if flag(name) in typed and not row.value.repeated:
            continue
        short = [f"-{row.option.short}"] if row.option.short and name == row.name else []
        for each in (flag(name), *short):
            if each.startswith(dashed):
                yield CompletionItem(each, help=row.option.help)


def _choices(row: Row) -> Iterable[str]:
    """Return the values of an option, from a metavar such as ``N|auto|gpu`` or from a table."""
    match row.name:
        case "cluster":
            return dict.fromkeys([*(known.name for known in CLUSTERS), NO_CLUSTER])
        case "help":
            return TOPICS
        case "print_completion":
            return SHELLS
    words = row.metavar.split("|")
    return (word for word in words if word.replace("-", "").isidentifier() and word.islower())


def _words(
    command: Command, line: CommandLine, begun: str, called: str, environ: Mapping[str, str]
) -> Iterable[Offer]:
    """Return the completions of the last word of the line."""
    if "RUN" in command.words:
        return _one_of(_runs(environ), begun)
    if len(line.words) > 1:
        return [CompletionItem(begun, type="file")]
    if "module" in line.options:
        return _one_of(_modules(begun), begun)
    if command is not RUN or PROGRAM_OPTIONS & line.options.keys():
        return _one_of((), begun, "file" if command.takes_script else "")
    found = _one_of(COMMANDS_BY_WORD if called != "torchrun" else (), begun)
    # If a file or folder has the name of a command, a shell would complete to that.
    named = {item.value for item in found} | {begun}
    folder = begun.rpartition("/")[0]
    beside = names_in(folder or ".", MAX_NAMES_IN_FOLDER, folders=True)
    is_file = any(name.startswith(begun) and name not in named for name in beside)
    return found if found and not is_file else [*found, CompletionItem(begun, type="file")]


def _modules(begun: str) -> Iterator[str]:
    """Yield the modules and packages below the current folder that begin with ``begun``: ``pkg.train``."""
    package, dot, start = begun.rpartition(".")
    folder = Path(*package.split(".")) if package else Path()
    for name in sorted(names_in(str(folder), MAX_NAMES_IN_FOLDER, folders=True)):
        own = name.removesuffix(".py")
        has_modules = own != name or names_in(str(folder / name), MAX_NAMES_IN_FOLDER, ending=".py")
        if own.startswith(start) and own.isidentifier() and own[:2] != "__" and has_modules:
            yield f"{package}{dot}{own}"


def _runs(environ: Mapping[str, str]) -> Iterable[str]:
    """Return the ids of this user's runs on this host."""
    # Imported here, because few completions need it.
    from clusterrun.cli.run_selection import found_jobs

    jobs = found_jobs(environ, SECONDS_TO_COMPLETE).jobs
    return dict.fromkeys(job.described.run_id for job in jobs)


def _one_of(words: Iterable[str], begun: str, path: str = "") -> list[Offer]:
    """Return the ``words`` that begin with ``begun``, and paths if ``path`` is "file" or "dir"."""
    found = [CompletionItem(word) for word in words if word.startswith(begun)]
    return [*found, CompletionItem(begun, type=path)] if path else found
