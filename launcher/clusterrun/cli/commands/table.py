"""The table of commands: dispatch, --help and completion follow from it.

A new command is a row here and a module of its name beside this one with a function ``execute``.
"""

import re
from collections.abc import Callable, Mapping
from importlib import import_module

from msgspec import Struct

from clusterrun.sources.options.option import Group, Kind, Option, switch_option
from clusterrun.sources.options.rows.files import LOG_DIR
from clusterrun.sources.options.rows.launcher import DRY_RUN, JSON, MACHINE_ROOT
from clusterrun.sources.options.rows.looking import (
    CAPTURE,
    FOLLOW,
    GREP,
    NATIVE,
    RANK,
    SHOWN_NODE,
    THIS_MACHINE,
)
from clusterrun.sources.options.rows.measuring import ROWS as MEASURING
from clusterrun.sources.options.table import OPTIONS
from clusterrun.sources.settings import CommandLine

Execute = Callable[[CommandLine, Mapping[str, str], str], int]
"""Takes the command line, the environment and the program's name; returns the exit code."""


class Command(Struct, frozen=True):
    """One row of the table."""

    typed: str
    """How a user asks for it: ``topo``, ``--version``; "" for the command that needs no word."""
    summary: str
    """One line of --help."""
    options: tuple[Option[object], ...] = OPTIONS
    """The options that it takes."""
    about: str = ""
    """The first lines of ``clusterrun COMMAND --help``; "": the summary."""
    own_options: tuple[Option[object], ...] = ()
    """Those that its help shows first; of all others, those of its ``groups``."""
    rows: str = ""
    """The module with ``ROWS``, options that only it takes; imported when the command is typed."""
    groups: tuple[Group, ...] = ()
    short: str = ""
    """One letter, for a command that is typed as a flag."""
    metavar: str = ""
    """The value of a command that is typed as a flag."""
    word: str = ""
    """The one word that may follow a command that is a word itself: ``[RUN]``; "" for none."""
    takes_script: bool = False
    """SCRIPT and its arguments follow it."""

    @property
    def name(self) -> str:
        """The name of its module."""
        return self.typed.removeprefix("--").replace("-", "_") or "run"

    @property
    def its_own_options(self) -> tuple[Option[object], ...]:
        """Those that its help shows first."""
        if not self.rows:
            return self.own_options
        only_here: tuple[Option[object], ...] = import_module(self.rows).ROWS
        return (*self.own_options, *only_here)

    @property
    def all_options(self) -> tuple[Option[object], ...]:
        """All that it takes."""
        return (*self.options, *self.its_own_options) if self.rows else self.options

    @property
    def is_flag(self) -> bool:
        return self.typed.startswith("--")

    @property
    def as_option(self) -> Option[str]:
        """The option as which it is typed, if it is a flag."""
        value = Kind.NEXT_WORD if self.metavar.startswith("[") else Kind.VALUE
        return Option(
            self.name,
            parse=str,
            default="",
            metavar=self.metavar,
            help=self.summary,
            kind=value if self.metavar else Kind.FLAG,
            short=self.short,
        )

    def as_typed(self, text: str) -> str:
        """Return a message with this command in the lines to type, which are those of a launch."""
        if not self.typed or self.is_flag:
            return text
        line = f"clusterrun {self.typed} [OPTIONS]"
        return re.sub(r"(?m)^( *)clusterrun \[OPTIONS\]", rf"\1{line}", text)

    def load(self) -> Execute:
        execute: Execute = import_module(f"clusterrun.cli.commands.{self.name}").execute
        return execute


RUN = Command("", "Start SCRIPT once for each GPU and look after the workers")
TOPO = Command(
    "topo",
    "Draw this machine, and where its workers would run",
    about=(
        "Draw this machine: packages, NUMA nodes, cores and GPUs, and where each worker would run."
        " It takes all options of a job; these matter most."
    ),
    options=(*OPTIONS, CAPTURE),
    own_options=(JSON, MACHINE_ROOT, CAPTURE),
    groups=(Group.WORKERS, Group.PLACING),
)
ONLY_PLANNED = (DRY_RUN, MACHINE_ROOT)
"""Options of jobs that are planned and not run."""

WARM = switch_option("warm", help="End what --keep-warm has left, as soon as it has no job")
NOW = switch_option("now", help="Kill the workers of all nodes, without a grace period")
ANY_NODE = "Type it on any node of the job. RUN may be left out if only one run has an agent here."
PS = Command(
    "ps",
    "List your running jobs on this machine",
    options=(JSON,),
    about="List the running jobs of this user on this machine; an agent that is stopped is named.",
    own_options=(JSON,),
)
STATUS = Command(
    "status",
    "Show all ranks of a running job, on all its nodes",
    options=(JSON,),
    about=(
        "Show the ranks of all nodes of a running job of this user: state, CPU use, memory, last"
        f" line. A node that does not answer within a second or so is named. {ANY_NODE}"
    ),
    own_options=(JSON,),
    word="[RUN]",
)
WATCH = Command(
    "watch",
    "Watch all ranks of a running job, live",
    options=(),
    about=(
        "Show what status shows, once a second, until the run ends or you type Ctrl-C. Where the"
        f" terminal is too small for a line for each rank, there is one for each node. {ANY_NODE}"
    ),
    word="[RUN]",
)
STACKS = Command(
    "stacks",
    "Print the Python stacks of all ranks of a running job",
    options=(RANK, NATIVE, JSON),
    about=(
        "Print the Python stacks of the ranks of a running job of this user, equal ones once, and"
        f" which ranks differ; nothing is ended. {ANY_NODE}"
    ),
    own_options=(RANK, NATIVE, JSON),
    word="[RUN]",
)
QUEUED = "clusterrun.sources.submissions.rows_of_queued_jobs"
LOGS = Command(
    "logs",
    "Print what a running or a submitted job prints",
    options=(),
    about=(
        "Print what the ranks of a running job of this user have printed last, on either stream;"
        f" no --log-dir is needed. {ANY_NODE} For a job that clusterrun submit has queued, give its"
        " id where no agent of it runs: its state and what it prints, from the beginning to its"
        " end, with its exit code. Options for log files: --help files."
    ),
    own_options=(FOLLOW, RANK, SHOWN_NODE, GREP, JSON),
    rows=QUEUED,
    word="[RUN|ID]",
)
STOP = Command(
    "stop",
    "End a running job on all its nodes",
    options=(NOW, WARM, JSON),
    about=(
        "End a running job of this user on all of its nodes, as SIGTERM does; or, with --warm, the"
        f" processes that --keep-warm has left on this machine. {ANY_NODE}"
    ),
    own_options=(NOW, WARM, JSON),
    word="[RUN]",
)
SUSPEND = Command(
    "suspend",
    "Have all ranks of a running job save, and end it",
    options=(JSON,),
    about=(
        "Have all ranks of a running job of this user save at one step, and end the job on all of"
        f" its nodes. {ANY_NODE}"
    ),
    own_options=(JSON,),
    word="[RUN]",
)
SUBMIT = Command(
    "submit",
    "Submit a job to the scheduler of this cluster",
    about=(
        "Write the batch script of a job and submit it. It takes all options of a job, and these,"
        " which are also keys of the job file's section submit, or of that of a scheduler."
    ),
    rows="clusterrun.sources.submissions.rows",
    takes_script=True,
)
CANCEL = Command(
    "cancel",
    "End a submitted job",
    options=(),
    about="End a job that clusterrun submit has queued, or remove it from the queue.",
    rows=QUEUED,
    word="ID",
)
DOCTOR = Command(
    "doctor",
    "Check whether this machine, or all nodes of a job, are fit for it",
    options=(*(row for row in OPTIONS if row not in ONLY_PLANNED), THIS_MACHINE),
    about=(
        "Check this machine: shared memory, folders, limits, names, interfaces, CPUs, GPUs; or,"
        " started as a job of several nodes is, with its options, all of them: also versions,"
        " connections, clocks, shared folders, speed. What is wrong is named, with what to do;"
        " exit code 1 if a usual job would fail. Options that matter most:"
    ),
    own_options=(THIS_MACHINE, LOG_DIR, JSON),
    groups=(Group.WORKERS, Group.MEETING, Group.REACHING),
)
BENCH = Command(
    "bench",
    "Measure how a script's throughput grows with its ranks",
    options=(*(row for row in OPTIONS if row not in ONLY_PLANNED), *MEASURING),
    about=(
        "Run SCRIPT at several sizes, and with other options too; read its throughput from what it"
        " prints; and print a table with speed-up, efficiency and spread. Outputs, table and a"
        " picture (with matplotlib) go to --log-dir, by default clusterrun-bench. It takes all"
        " options of a job; --nnodes may be a list, such as 1,2, with --launcher ssh, and in an"
        " allocation of Slurm, where bench starts each run by srun itself."
    ),
    own_options=(*MEASURING, JSON),
    takes_script=True,
)
ENV = Command(
    "env",
    "Print what a bug report needs, without secrets",
    options=(JSON,),
    about=(
        "Print versions, limits, the machine and the variables that a job depends on: what a bug"
        " report needs. Values of variables that may be secret are left out; neither the name of"
        " the host nor that of the user is asked for."
    ),
    own_options=(JSON,),
)
HELP = Command("--help", "Print this, a group of options, or all", short="h", metavar="[GROUP|all]")
VERSION = Command("--version", "Print the versions of clusterrun, Python and torch")
PRINT_COMPLETION = Command(
    "--print-completion", "Print what completes options in bash, zsh or fish", metavar="SHELL"
)

COMMANDS = (
    *(RUN, TOPO, SUBMIT, CANCEL, PS, STATUS, WATCH, STACKS, LOGS, STOP, SUSPEND),
    *(DOCTOR, BENCH, ENV),
    *(HELP, VERSION, PRINT_COMPLETION),
)
"""In the order of --help."""

FLAGS = tuple(command for command in COMMANDS if command.is_flag)
"""Commands that are typed as a flag; the first of several is the one that is meant."""

FLAG_OPTIONS = tuple(command.as_option for command in FLAGS)

WORDS = {command.typed: command for command in COMMANDS if command.typed and not command.is_flag}
"""Commands that are typed as the first word, by that word."""
