"""``clusterrun --print-completion SHELL``: click's script for a shell, and what this script asks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
)

from clusterrun.cli.commands import PROGRAM_OPTIONS, RUN, WORDS, Command
from clusterrun.cli.help import TOPICS
from clusterrun.cli.printing_options import PRINTING
from clusterrun.cli.splitting import Values, click_command, flags_of, full_name, with_values
from clusterrun.errors import UsageError
from clusterrun.job.clusters.detection import CLUSTERS
from clusterrun.job.declaring import Row
from clusterrun.job.file_kinds import names_in
from clusterrun.job.suggestions import LARGEST_FOLDER, did_you_mean


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


class _Fish(FishComplete):
    """Shows whole descriptions; click's own script cuts them at the first comma."""

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
"""For agents to answer: a user waits for the shell."""


class _Command(click.Command):
    """Offers files after SCRIPT, where all options are the script's."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem[str]"]:
        if ctx.params.get("words"):
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, _dashed(incomplete))


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
    return _completer(shell, called, RUN, {}).source()


def completions(instruction: str, called: str, environ: Mapping[str, str]) -> str:
    """Return what a shell offers, in the form that the script of ``completion_script`` reads.

    Raises:
        UsageError: no such script sets its variable to ``instruction``.

    """
    shell, _, wanted = instruction.partition("_")
    if shell not in SHELLS or wanted != "complete":
        variable = _variable(called)
        raise UsageError(
            f"{variable} is {instruction!r}, which no completion script sets", f"unset {variable}"
        )
    completer = _completer(shell, called, RUN, environ)
    typed, incomplete = completer.get_completion_args()
    # bash splits "--name=VALUE" into three words.
    words = [word for word in typed if word != "="]
    args = _in_full(words, RUN)
    context = completer.cli.make_context("clusterrun", [*args], resilient_parsing=True)
    after = context.params["words"] or ()
    if after and after[0] in WORDS and PROGRAM_OPTIONS.isdisjoint(_set(context)):
        command = WORDS[after[0]]
        completer = _completer(shell, called, command, environ)
        args = _in_full(words[len(words) - len(after) + 1 :], command)
    items = completer.get_completions(args, incomplete)
    return "\n".join(map(completer.format_completion, items))


def _completer(
    shell: str, called: str, command: Command, environ: Mapping[str, str]
) -> ShellComplete:
    values_of = partial(_completion, command, environ)
    rows = {**command.rows, **PRINTING}
    command_of_click = click_command(rows, full_name, values_of, _Command)
    return SHELLS[shell](command_of_click, {}, called, _variable(called))


def _variable(called: str) -> str:
    """Return the variable by which a shell asks for completions, as click names it."""
    return f"_{called.upper()}_COMPLETE"


def _dashed(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word


def _in_full(words: Sequence[str], command: Command) -> list[str]:
    """Return the words with flags of ``command`` in full, and a value for each that has one alone."""
    rows = {**command.rows, **PRINTING}
    known = flags_of(rows)

    def in_full(word: str) -> str:
        head, equals, value = word.partition("=")
        return f"--{full_name(head[2:], known=known)}{equals}{value}" if head[:2] == "--" else word

    return with_values([in_full(word) for word in words], rows, partial(full_name, known=known))


def _set(context: click.Context) -> Iterator[str]:
    return (name for name, value in context.params.items() if value)


def _completion(command: Command, environ: Mapping[str, str], row: Row | None) -> Values:
    """Return what completes the value of an option, or the words of a command (None)."""
    if row is None and "RUN" in command.words:
        return partial(_runs, environ)
    if row is None:
        return _words if command is RUN else _one_of((), "file" if command.takes_script else "")
    return _one_of(tuple(_choices(row)), row.value.completes)


def _choices(row: Row) -> Iterable[str]:
    """Return the words of a metavar such as ``N|auto|gpu``, or names that are listed elsewhere."""
    match row.name:
        case "cluster":
            return dict.fromkeys(known.name for known in CLUSTERS)
        case "help":
            return TOPICS
        case "print_completion":
            return SHELLS
    words = row.metavar.split("|")
    return (word for word in words if word.replace("-", "").isidentifier() and word.islower())


def _words(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list["CompletionItem[str]"]:
    """Return the completion to SCRIPT or to a command in its place, or to SCRIPT's arguments."""
    if context.params.get("words"):
        return [CompletionItem(incomplete, type="file")]
    if context.params.get("module"):
        return [CompletionItem(name) for name in _modules(incomplete)]
    commands = () if PROGRAM_OPTIONS & {*_set(context)} else tuple(WORDS)
    found = _one_of(commands)(context, parameter, incomplete)
    # Beside a folder of a command's name, a shell would complete to the folder.
    named = {item.value for item in found} | {incomplete}
    folder = incomplete.rpartition("/")[0]
    beside = names_in(folder or ".", LARGEST_FOLDER, folders=True)
    is_file = any(name.startswith(incomplete) and name not in named for name in beside)
    return found if found and not is_file else [*found, CompletionItem(incomplete, type="file")]


def _modules(incomplete: str) -> Iterator[str]:
    """Yield the modules and packages in the current folder that begin so: ``pkg.train``."""
    package, dot, begun = incomplete.rpartition(".")
    folder = Path(*package.split(".")) if package else Path()
    for name in sorted(names_in(str(folder), LARGEST_FOLDER, folders=True)):
        own = name.removesuffix(".py")
        has_modules = own != name or names_in(str(folder / name), LARGEST_FOLDER, ending=".py")
        if own.startswith(begun) and own.isidentifier() and own[:2] != "__" and has_modules:
            yield f"{package}{dot}{own}"


def _runs(
    environ: Mapping[str, str],
    context: click.Context,
    parameter: click.Parameter,
    incomplete: str,
) -> list["CompletionItem[str]"]:
    """Return the runs of this user on this host."""
    # Few lines need them, and a stopped agent must not stop a shell.
    from clusterrun.cli.chosen_run import found_jobs

    jobs = found_jobs(environ, SECONDS_TO_COMPLETE).jobs
    names = dict.fromkeys(job.described.run_id for job in jobs)
    return _one_of(tuple(names))(context, parameter, incomplete)


def _one_of(words: tuple[str, ...], path: str = "") -> Values:
    """Return the completion to one of ``words`` or to a ``path``, "file" or "dir"."""

    def complete(
        _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list["CompletionItem[str]"]:
        found = [CompletionItem(word) for word in words if word.startswith(incomplete)]
        return [*found, CompletionItem(incomplete, type=path)] if path else found

    return complete
