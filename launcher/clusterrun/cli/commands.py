"""The table of commands, from which parsing, --help and completion follow."""

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.cli.splitting import PRINTING, split
from clusterrun.errors import UsageError, shell_line
from clusterrun.job.declarations import Row, by_any_name, rows_of
from clusterrun.job.file_kinds import FileKind, kind_of
from clusterrun.job.options import NAMES, OPTIONS, Placing, Rendezvous, Ssh, Workers
from clusterrun.job.sources import CommandLine, typed
from clusterrun.job.suggestions import closest

Execute = Callable[[CommandLine, Mapping[str, str], str], int]
"""Takes the command line, the environment and the program's name; returns the exit code."""

SYNONYMS = {
    **dict.fromkeys(("end", "kill", "terminate"), "stop"),
    **dict.fromkeys(("jobs", "list", "queue", "runs"), "ps"),
    **dict.fromkeys(("info", "show", "top"), "status"),
    "check": "doctor",
}
"""Words that other programs use for what one of our commands does."""

PROGRAM_OPTIONS = {"module", "no_python", "run_path"}
"""With one of these, a first word such as ``topo`` is a module or program, not a command."""

ALL = tuple(OPTIONS)

ALL_TO_RUN = tuple(name for name in OPTIONS if name not in {"dry_run", "machine_root"})
"""Without the options for a job that is only planned."""


class Command(Struct, frozen=True):
    """One row of the table."""

    word: str
    """The first word of the command line, such as ``topo``; "" to run a job."""
    summary: str
    """One line of --help."""
    function: str
    """Its ``Execute``, ``MODULE:FUNCTION`` below clusterrun, which is imported when it is needed."""
    own: tuple[str, ...] = ()
    """Structs of the options that only it takes, each ``MODULE:CLASS``."""
    takes: tuple[str, ...] = ()
    """The options of a job that it also takes."""
    shows: tuple[str, ...] = ()
    """The options among ``takes`` that its help lists; (): all, if they are few."""
    groups: tuple[type[Struct], ...] = ()
    """Groups of a job's options that its help lists."""
    about: str = ""
    """The first lines of ``clusterrun COMMAND --help``; "" for the summary."""
    explain_unknown: str = ""
    """``MODULE:FUNCTION`` for options that similar commands have and this one lacks. It takes the words
    from such an option on and the known flags, and returns a ``UsageError`` or None."""
    words: str = ""
    """The words that it takes: ``[RUN]``, or ``SCRIPT`` with all that follows; "" for none."""

    @property
    def takes_script(self) -> bool:
        return self.words == "SCRIPT"

    @property
    def own_rows(self) -> dict[str, Row]:
        """Return its own options by name."""
        return rows_of(*(load_object(each) for each in self.own))

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the options of a job that its help lists."""
        return self.shows or (() if "nnodes" in self.takes else self.takes)

    @property
    def rows(self) -> dict[str, Row]:
        """Return all options that it takes, by each of their names."""
        if not self.own and self.takes == ALL:
            return NAMES
        return by_any_name({**{name: OPTIONS[name] for name in self.takes}, **self.own_rows})

    def adapt_hint(self, text: str) -> str:
        """Return a message about a job with this command in the lines ``clusterrun [OPTIONS]``."""
        if not self.word:
            return text
        line = f"clusterrun {self.word} [OPTIONS]"
        return re.sub(r"(?m)^( *)clusterrun \[OPTIONS\]", rf"\1{line}", text)


_ANY_NODE = (
    "Run this on any node of the job. RUN can be omitted if only one run has an agent on that node."
)
_CONFIRMS = (
    "Run this on any node of the job. On a terminal, RUN can be omitted if only one run has an agent on"
    " that node; you are then asked to confirm."
)

RUN = Command(
    "",
    "Start SCRIPT once for each GPU and supervise the workers",
    "cli.run:execute",
    takes=ALL,
    words="SCRIPT",
)

COMMANDS = (
    RUN,
    Command(
        "topo",
        "Show the layout of this machine and where workers would run",
        "cli.topo:execute",
        own=("cli.topo:Topo",),
        takes=ALL,
        shows=("json", "machine_root"),
        groups=(Workers, Placing),
        about="Show the layout of this machine: sockets, NUMA nodes, cores and GPUs, and where"
        " each worker would run. Takes all job options; these matter most.",
    ),
    Command(
        "submit",
        "Submit a job to Slurm",
        "clients.submit:execute",
        own=("clients.submit:Submit", "clients.submit:SlurmRequest"),
        explain_unknown="clients.submit:unknown_option",
        takes=ALL,
        about="Write the batch script of a job and submit it to Slurm. It takes all options of a job,"
        " and these.",
        words="SCRIPT",
    ),
    Command(
        "ps",
        "List your running jobs on this machine",
        "cli.ps:execute",
        takes=("json",),
        about="List your running jobs on this machine, and point out any agent that is stopped.",
    ),
    Command(
        "status",
        "Show all ranks of a running job, on all its nodes",
        "cli.status:execute",
        takes=("json",),
        about="Show all ranks of one of your running jobs, on all nodes: state, CPU use, memory,"
        f" last line. Nodes that do not answer within about a second are listed. {_ANY_NODE}",
        words="[RUN]",
    ),
    Command(
        "stacks",
        "Print the Python stacks of all ranks of a running job",
        "cli.stacks:execute",
        own=("cli.stacks:Stacks",),
        takes=("json",),
        about="Print the Python stacks of all ranks of one of your running jobs, identical ones"
        f" only once, and which ranks differ; the job keeps running. {_ANY_NODE}",
        words="[RUN]",
    ),
    Command(
        "slow",
        "Find the rank that the others wait for, and why",
        "cli.slow:execute",
        own=("cli.slow:Slow",),
        takes=("json",),
        about="Sample the main threads of all ranks of one of your running jobs, with py-spy on"
        " nodes that have it. Shows which rank the others wait for, and what that rank is"
        f" doing or whether it lacks CPU time. Ranks are not paused. {_ANY_NODE}",
        words="[RUN]",
    ),
    Command(
        "stop",
        "End a running job on all its nodes",
        "cli.stop:execute",
        own=("cli.stop:Stop",),
        takes=("json",),
        about=f"End one of your running jobs on all of its nodes, as SIGTERM does. {_CONFIRMS}",
        words="[RUN]",
    ),
    Command(
        "suspend",
        "Have all ranks of a running job save a checkpoint, then end it",
        "cli.suspend:execute",
        takes=("json",),
        about="Have all ranks of one of your running jobs save a checkpoint at the same step, then"
        f" end the job on all of its nodes. {_CONFIRMS}",
        words="[RUN]",
    ),
    Command(
        "doctor",
        "Check whether this machine, or every node of a job, is fit to run jobs",
        "clients.doctor.doctor:execute",
        own=("clients.doctor.doctor:Doctor",),
        takes=ALL_TO_RUN,
        shows=("log_dir", "json"),
        groups=(Workers, Rendezvous, Ssh),
        about="Check this machine: shared memory, folders, limits, host names, interfaces, CPUs,"
        " GPUs. If you run it on every node with a job's options, it checks all nodes, and"
        " also compares versions and checks connections, clocks, shared folders and speed."
        " Each problem is printed with its fix; exit code 1 if a typical job would fail."
        " Options that matter most:",
    ),
    Command(
        "bench",
        "Measure how a script's throughput grows with its ranks",
        "clients.bench:execute",
        own=("clients.bench:BenchOptions",),
        takes=ALL_TO_RUN,
        shows=("json",),
        about="Run SCRIPT at several sizes, and with other options too; read its throughput from"
        " what it prints; and print a table with speed-up, efficiency and spread. Outputs,"
        " the table and (with matplotlib) a plot go to --log-dir, by default"
        " clusterrun-bench. It takes all options of a job. With --launcher ssh, or in a Slurm"
        " allocation, where bench starts each run with srun, --nnodes may be a list such as"
        " 1,2.",
        words="SCRIPT",
    ),
    Command(
        "env",
        "Print what a bug report needs, without secrets",
        "cli.env:execute",
        takes=("json",),
        about="Print versions, limits, the machine and the variables that a job depends on: what a"
        " bug report needs. Values of variables that may be secret are omitted; host and"
        " user names are in it only as parts of other values, such as MASTER_ADDR or a path.",
    ),
)
"""In the order of --help."""

SSH_LAUNCHER = "clients.ssh.hosts:launch_over_ssh"
"""Runs a job with ``--launcher ssh``."""

COMMANDS_BY_WORD = {command.word: command for command in COMMANDS if command.word}


def find_command(
    argv: Sequence[str], called: str, commands: Mapping[str, Command] = COMMANDS_BY_WORD
) -> tuple[Command, CommandLine]:
    """Return the command, and its options and words without the command's word.

    ``torchrun`` has no commands. If an option of ``PRINTING`` is present, the rest of the line is not
    checked.

    Raises:
        UsageError: an option is unknown, lacks its value, or has one that it does not take.

    """
    line = split(argv, called)
    command = RUN
    may_be_command = called != "torchrun" and not line.after_dashes
    if may_be_command and line.words and not PROGRAM_OPTIONS & line.options.keys():
        command = commands.get(line.words[0], RUN)
    if command is RUN or not PRINTING.keys().isdisjoint(line.options):
        return RUN, line
    if not command.takes_script and {"-h", "--help"} & set(line.words[1:]):
        return RUN, CommandLine(typed(help=command.word))
    line = _with_options_after(command, line, called)
    if "help" in line.options:
        return RUN, CommandLine(typed(help=command.word))
    return command, line


def suggest_command(line: CommandLine, error: UsageError) -> UsageError:
    """Return the error of a job, with a hint if SCRIPT is nearly a command or was one in old versions."""
    word = line.words[0] if line.words else ""
    kind = kind_of(word)
    if PROGRAM_OPTIONS & line.options.keys() or kind is FileKind.FILE:
        return error
    from clusterrun.job.removed_options import REMOVED_COMMANDS

    # Even if there is a folder of that name, which is often called logs.
    if replacement := REMOVED_COMMANDS.get(word):
        return UsageError(f"there is no command {word} any more", replacement)
    # Two letters are similar to any short word, such as sp to ps.
    nearest = SYNONYMS.get(word) or (closest(word, COMMANDS_BY_WORD) if len(word) > 2 else "")
    if kind is not FileKind.NOTHING or not nearest:
        return error
    return UsageError(error.message, f"{error.hint}\ndid you mean clusterrun {nearest}?".lstrip())


def _with_options_after(command: Command, line: CommandLine, called: str) -> CommandLine:
    """Return the options before and after the command's word; those after it take precedence."""
    words, rows = line.words[1:], command.rows
    explain = load_object(command.explain_unknown) if command.explain_unknown else None
    try:
        after = split(words, called, rows, takes_script=command.takes_script, explain=explain)
    except UsageError as error:
        hint = command.adapt_hint(error.hint) or f"run clusterrun {command.word} --help"
        raise UsageError(error.message, _or_script(command, hint, words)) from None
    if not_taken := [texts[-1].origin for name, texts in line.options.items() if name not in rows]:
        raise UsageError(
            f"clusterrun {command.word} has no option {not_taken[0]}",
            f"run clusterrun {command.word} --help",
        )
    if len(after.words) > bool(command.words) and not command.takes_script:
        last = after.words[-1]
        takes = (
            f"one {command.words}, but was also given {last}"
            if command.words
            else f"only options, and {last} is not an option"
        )
        raise UsageError(
            f"clusterrun {command.word} takes {takes}",
            _or_script(command, f"run clusterrun {command.word} --help", words),
        )
    return replace(after, options={**line.options, **after.options})


def _or_script(command: Command, hint: str, words: Sequence[str]) -> str:
    if kind_of(command.word) is FileKind.NOTHING:
        return hint
    line = shell_line(["clusterrun", f"./{command.word}", *words])
    return f"{hint}\nto run the file {command.word} instead:\n  {line}"


def load_object(path: str) -> Any:
    """Import and return ``MODULE:NAME`` below clusterrun, which may be in a higher layer."""
    module, _, name = path.partition(":")
    return getattr(import_module(f"clusterrun.{module}"), name)
