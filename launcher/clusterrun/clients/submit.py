"""``clusterrun submit``: writes the batch script of a job, submits it to Slurm, and follows the job.

In this order: the options, the job that they describe, its script, what Slurm answers, and how a job
is followed to its end.
"""

import os
import re
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path, PurePath
from types import FrameType
from typing import Annotated, ClassVar, TextIO

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.cli.printing import complain, print_text, warn
from clusterrun.errors import ExitCode, MachineError, UsageError, exit_code_of_signal
from clusterrun.job.declaring import Fact, Option, Row, Value, by_any_name, rows_of, words_of
from clusterrun.job.gone import GONE_FROM_SUBMIT
from clusterrun.job.job import ProgramKind, WorkerProgram
from clusterrun.job.options import NAMES, OPTIONS, Launcher, NodeLauncher, Reaching
from clusterrun.job.place import asked_nodes
from clusterrun.job.program import (
    default_interpreter,
    find_executable,
    find_program,
    misplaced_options,
)
from clusterrun.job.resolve import environment, read_sources
from clusterrun.job.sources import ENV_VARIABLE, CommandLine, Layer, find, layer_of, read, value_of
from clusterrun.job.this_process import Answer, ThisProcess, ask, this_process
from clusterrun.job.values import number

# The options


class Gpus(Struct, frozen=True):
    """GPUs of one node."""

    number: int
    model: str = ""
    """As Slurm calls it, such as ``h100``; "": any."""

    def __str__(self) -> str:
        """Return the value as typed: ``h100:8``."""
        return f"{self.model}:{self.number}" if self.model else str(self.number)


LONGEST_TIME = 10 * 365 * 86_400
"""Seconds: no queue has a longer limit."""

MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}

_SECONDS = (86_400, 3_600, 60, 1)
_CLOCK = re.compile(r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]\d):([0-5]\d)")
_IN_UNITS = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")


def _time_limit(text: str) -> int:
    """Read ``2:00:00``, ``1-12:00:00``, ``90m`` or ``1d12h``; seconds.

    A plain number is minutes to Slurm and ``2:30`` is minutes and seconds: both are refused.
    """
    found = _CLOCK.fullmatch(text) or _IN_UNITS.fullmatch(text)
    parts = found.groups() if found else ()
    seconds = sum(int(part or 0) * size for part, size in zip(parts, _SECONDS, strict=False))
    if not 0 < seconds <= LONGEST_TIME:
        raise _not(text, "a time limit", "give, for example, 2:00:00, 90m, 12h or 1-12:00:00")
    return seconds


def _memory_size(text: str) -> int:
    """Read ``64G`` or ``64GiB``; MiB."""
    found = re.fullmatch(r"(\d{1,9})([KMGT])(?:i?B)?", text, re.IGNORECASE)
    size = int(int(found[1]) * MIB[found[2].upper()]) if found else 0
    if not size:
        raise _not(text, "a size of memory", "give, for example, 64G or 500M")
    return size


def _gpus(text: str) -> Gpus:
    """Read ``8`` or ``h100:8``."""
    found = re.fullmatch(r"(?:([A-Za-z][\w./-]*):)?(\d{1,4})", text)
    if not found:
        raise _not(text, "a number of GPUs", "give, for example, 8 or h100:8; 0 for none")
    return Gpus(int(found[2]), found[1] or "")


def _mounts(text: str) -> tuple[str, ...]:
    """Read ``SOURCE:TARGET,...``."""
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        if not re.fullmatch(r"/[^\s\"']*", part):
            raise _not(part, "a folder to mount", "give, for example, /data or /data:/mnt/data")
    return found


def _line(text: str) -> str:
    """Read one line; a text of YAML may end with a line break."""
    if len(text.strip().splitlines()) != 1:
        raise _not(text, "one line", "give one line; repeat it for more")
    return text.strip("\n")


def _directive(text: str) -> str:
    # Of two marks, the second would make the line a comment.
    return _line(text).strip().removeprefix("#SBATCH").strip()


def _text(pattern: str, what: str, metavar: str, hint: str) -> Value:
    """Return a kind of text, all of which matches ``pattern``."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise _not(text, what, hint)
        return text

    return Value(read, metavar)


def _not(text: str, what: str, hint: str) -> UsageError:
    shown = text if len(text) < 60 else f"{text[:60]}..."
    return UsageError(f"{shown!r} is not {what}", hint)


_NAME = r"[A-Za-z0-9_][\w.@+/=-]*"
_A_NAME = ("a name", "NAME", "give letters, digits and any of _ . @ + / = - between them")

Name = Annotated[str, _text(_NAME, *_A_NAME)]
Names = Annotated[str, _text(rf"{_NAME}(,{_NAME})*", *_A_NAME)]
"""Partitions, of which the job may have any: ``a100,h100``."""


class Submit(Struct, frozen=True):
    """What ``clusterrun submit`` does with the script."""

    title: ClassVar = "What becomes of it"

    print: Annotated[bool, Option("Print the batch script, and submit nothing", in_file=False)] = (
        False
    )
    follow: Annotated[
        bool,
        Option(
            "Show the job's state and what it prints, and exit with its code; Ctrl-C leaves it",
            in_file=False,
        ),
    ] = False


class SlurmRequest(Struct, frozen=True):
    """What a job asks Slurm for; "" and None are not set."""

    title: ClassVar = "What is asked of Slurm"

    job_name: Annotated[Name, Option("The job's name", default="that of SCRIPT")] = ""
    gpus_per_node: Annotated[
        Gpus | None,
        Value(_gpus, "[MODEL:]N"),
        Option("GPUs on each node; 0 for none", default="those that --nproc-per-node workers need"),
    ] = None
    cpus_per_gpu: Annotated[
        int | None,
        number("a number of CPUs", 1),
        Option(
            "CPUs for each GPU, or for each worker if there are no GPUs",
            default="a GPU's part of a node, by sinfo; one for each worker without a GPU",
        ),
    ] = None
    memory_per_gpu: Annotated[
        int | None,
        Value(_memory_size, "SIZE"),
        Option(
            "Memory for each GPU or worker, such as 64G",
            default="Slurm's; all of it with --exclusive",
        ),
    ] = None
    """MiB."""
    time: Annotated[
        int | None,
        Value(_time_limit, "LIMIT"),
        Option(
            "When Slurm ends the job, such as 2:00:00, 90m or 1-12:00:00",
            default="the partition's",
        ),
    ] = None
    """Seconds."""
    partition: Annotated[Names, Option("The partition", aliases=("queue",), default="Slurm's")] = ""
    account: Annotated[Name, Option("The account that pays", default="Slurm's")] = ""
    qos: Annotated[Name, Option("The quality of service", default="Slurm's")] = ""
    constraint: Annotated[
        str,
        _text(
            r"[^\s\"'\\`$]+",
            *("a constraint", "FEATURES", "give features of nodes, such as a100 or a100|h100"),
        ),
        Option("Features that the nodes must have, such as a100|h100", default="none"),
    ] = ""
    exclusive: Annotated[bool, Option("Whole nodes, with all of their GPUs, CPUs and memory")] = (
        False
    )
    image: Annotated[
        str,
        _text(
            r"[^\s\"'\\]+",
            *("an image", "IMAGE"),
            "give a file, such as train.sif, or a name, such as docker://REGISTRY/NAME:TAG",
        ),
        Option(
            "Run in a container of this image, which has clusterrun on its PATH: by apptainer if it"
            " ends in .sif or begins with a scheme, else by pyxis",
            default="no container",
        ),
    ] = ""
    mounts: Annotated[
        tuple[str, ...],
        Value(_mounts, "SOURCE:TARGET,..."),
        Option("Folders that the container sees besides the current one", default="none"),
    ] = ()
    setup: Annotated[
        tuple[str, ...],
        Value(_line, "LINE", repeated=True),
        Option(
            "A line of shell to run first on the first node, such as 'module load cuda'; may be"
            " repeated",
            default="none",
        ),
    ] = ()
    directive: Annotated[
        tuple[str, ...],
        Value(_directive, "LINE", repeated=True),
        Option(
            "Any other option of sbatch, such as --directive=--mail-type=END; may be repeated",
            default="none",
        ),
    ] = ()


ROWS = rows_of(Submit, SlurmRequest)

KEYS = {name: row for name, row in by_any_name(ROWS).items() if row.option.in_file}
"""Of the job file's section ``submit``."""


def unknown_option(words: Sequence[str], known: Sequence[str]) -> UsageError | None:
    """Return the error for an option that submit does not have, with which ``words`` begin.

    None: it abbreviates one of the ``known`` flags, or looks like one. An option of Slurm's is no
    abbreviation: ``--mem`` is not ``--memory-per-gpu``.
    """
    from shlex import quote

    from clusterrun.job.foreign_options import foreign_option, usual_option
    from clusterrun.job.suggestions import closest

    typed, equals, _ = words[0].partition("=")
    name = typed.lstrip("-").replace("_", "-")
    if instead := GONE_FROM_SUBMIT.get(name.replace("-", "_")):
        return UsageError(f"there is no option {typed} any more", instead)
    is_slurms = "srun" in (foreign_option(name) or {})
    is_nearly_ours = len(name) > 1 and any(each.startswith(name) for each in known)
    if not is_slurms and (is_nearly_ours or usual_option(name, known) or closest(name, known)):
        return None
    has_value = not equals and words[1:] and not words[1].startswith("-")
    line = " ".join(words[: 2 if has_value and not words[1].endswith(".py") else 1])
    return UsageError(
        f"there is no option {typed}",
        f"if it is sbatch's, type clusterrun's own for it (clusterrun submit --help), or"
        f" --directive={quote(line)}\nif it is the script's, put it after the script",
    )


# The job


class Submission(Struct, frozen=True):
    """A job as it is submitted: what is asked for, and the command of each node."""

    request: SlurmRequest
    origins: Mapping[str, str]
    """Where each field of the request and ``nnodes`` are set; not of defaults."""
    job_name: str
    nodes: int
    """All nodes, spares included."""
    fewest_nodes: int
    """The fewest with which the job starts; otherwise as ``nodes``."""
    outlives_nodes: bool
    """The job goes on without a lost node: Slurm must not end it."""
    workers_per_node: int | None
    """None: one for each GPU."""
    gpus: Gpus | None
    """Of each node; None: all GPUs of whole nodes."""
    requeue: bool
    launcher: tuple[str, ...]
    """The words that start clusterrun: its path, or its name in a container."""
    options: tuple[tuple[str, ...], ...]
    """Its options, each with its value: ``("--max-restarts", "2")``.

    They have all that the job file and variables set: what those hold when the job leaves the queue,
    hours later, does not matter.
    """
    words: tuple[str, ...]
    """SCRIPT and its arguments."""
    env: str
    """What ``--env`` says, as ``ENV_VARIABLE`` has it; "": nothing."""
    unset: tuple[str, ...]
    """Variables of the shell in which the job is submitted that clusterrun must not read there."""
    warning: str
    """What may not be meant; "": nothing."""

    @property
    def needs_gpus(self) -> bool:
        return self.gpus is None or self.gpus.number > 0

    @property
    def units(self) -> int | None:
        """How many GPUs, or workers without one, a node has; None: unknown."""
        if self.gpus is None or not self.gpus.number:
            return self.workers_per_node or (1 if self.gpus else None)
        return self.gpus.number

    @property
    def cpus(self) -> int | None:
        """CPUs of each node; None: not set, or unknown. A worker without a GPU needs one at least."""
        per = self.request.cpus_per_gpu
        if per is None and not self.needs_gpus and not self.request.exclusive:
            return self.workers_per_node
        return None if per is None or self.units is None else per * self.units

    @property
    def memory(self) -> int | None:
        """MiB of each node; None: not set, or unknown."""
        per, units = self.request.memory_per_gpu, self.units
        return None if per is None or units is None else per * units


OF_THIS_CALL = set(rows_of(Launcher))
"""Options that are no part of a job, or are replaced by what they name."""

FROM_SLURM = {
    *("hosts", "hostfile", "node_rank", "cluster", "master_addr", "master_port", "rdzv_endpoint"),
    *rows_of(Reaching),
}
"""Options by which nodes find each other without a scheduler: only typed ones are kept."""


def describe(line: CommandLine, environ: Mapping[str, str], process: ThisProcess) -> Submission:
    """Return what the command line, ``environ`` and the job file describe.

    Raises:
        UsageError: something is impossible; nothing has been submitted.

    """
    job, words = read_sources(line, environ)
    asked = (line.options, _section(value_of("config", job)))
    _check_options(job)
    request = read(SlurmRequest, asked)
    # The set-up may activate an environment with another clusterrun.
    is_on_path = bool(request.image or request.setup)
    if not request.image or not words.value:
        program = find_program(words, job, environ.get("PATH", ""))
        if program.value.is_standard_input:
            raise UsageError(
                f"a script on standard input ({program.value.name}) can't wait in a queue",
                "save it to a file, and give the file",
            )
        python = default_interpreter(program.value, process, environ)
        if python.origin != "default" and not is_on_path:
            # The environment that is active now may not be active on the nodes.
            job = (*job, layer_of(python=python))
    gpus, workers = _gpus_of_a_node(request, asked, job), _workers(job)
    nodes, nnodes = asked_nodes(job)[0] or Fact(1, "default"), value_of("nnodes", job).value
    is_elastic = nnodes.fewest != nnodes.most
    keeps_going = is_elastic or value_of("spares", job).value > 0
    facts = {name: find(name, asked, ROWS) for name in rows_of(SlurmRequest)}
    facts |= {"nnodes": nodes, "gpus_per_node": gpus}
    origins = {
        name: fact.origin for name, fact in facts.items() if fact and fact.origin != "default"
    }
    _check_request(request, origins, gpus, job)
    return Submission(
        request=request,
        origins=origins,
        job_name=request.job_name or _name_of(words.value[0], job),
        nodes=nodes.value,
        fewest_nodes=nnodes.fewest if is_elastic else nodes.value,
        outlives_nodes=nodes.value > 1
        and (keeps_going or value_of("rejoin_timeout", job).value > 0),
        workers_per_node=workers,
        gpus=gpus.value,
        requeue=value_of("requeue", job).value,
        launcher=("clusterrun",) if is_on_path else path_of_launcher(process.python),
        options=tuple(
            option for row in OPTIONS.values() for option in _typed(row, job, is_elastic=is_elastic)
        ),
        words=words.value,
        env=_env(job),
        unset=_left_out(job[1:3]),
        warning=_requeue_warning(request, job),
    )


def _section(config: Fact[str]) -> Layer:
    """Return what the section ``submit`` of the job file sets.

    Raises:
        UsageError: it has a key that no option has, or a value of another shape.

    """
    if not config.value:
        return {}
    # yaml is slow to import.
    from clusterrun.job.job_file import SECTION, read_entries

    section = read_entries(config).get(SECTION)
    if section is None or section.is_empty:
        return {}
    found: dict[str, tuple[Fact[str], ...]] = {}
    for dotted, entry in section.entries("time: 2:00:00").items():
        row = _row(dotted.removeprefix(f"{SECTION}."), entry.origin)
        if not entry.is_empty:
            texts = entry.texts() if entry.is_list and row.name in LISTS else (entry.text(),)
            texts = texts if row.value.repeated else (",".join(texts),)
            found[row.name] = tuple(Fact(text, entry.origin) for text in texts)
    return found


def _row(key: str, origin: str) -> Row:
    """Return the option of a key of the section."""
    from clusterrun.job.suggestions import did_you_mean

    if instead := GONE_FROM_SUBMIT.get(key):
        raise UsageError(f"{origin}: there is no such key any more", instead)
    if key not in KEYS:
        hint = did_you_mean(key, KEYS) or "keys are the options of clusterrun submit --help"
        hint = "it is a key of the job: write it outside of the section" if key in NAMES else hint
        raise UsageError(f"{origin}: there is no such key", hint)
    return KEYS[key]


LISTS = {"mounts", *(name for name, row in ROWS.items() if row.value.repeated)}
"""Keys that may have a list."""


def _check_options(job: Sequence[Layer]) -> None:
    """Check that each option of the job has a value that it can have.

    Raises:
        UsageError: one has not; the message begins with where it is set.

    """
    found = {name: value_of(name, job) for name in OPTIONS}
    starts = value_of("launcher", job[:1])
    if starts.value is not NodeLauncher.NONE:
        raise UsageError(
            f"{starts.origin} {starts.value.value} starts the job now, and Slurm starts it later",
            f"leave submit or {starts.origin} out",
        )
    if found["dry_run"].value:
        raise UsageError(
            f"{found['dry_run'].origin} goes with a job that starts now",
            "to see what would be submitted, type --print",
        )


def _gpus_of_a_node(
    request: SlurmRequest, asked: Sequence[Layer], job: Sequence[Layer]
) -> Fact[Gpus | None]:
    """Return the GPUs of a node: as set, else one or more for each worker.

    Raises:
        UsageError: neither they nor the workers are set, nor whole nodes.

    """
    if given := find("gpus_per_node", asked, ROWS):
        return given
    if workers := _workers(job):
        each = value_of("gpus_per_worker", job).value
        number = workers * (1 if each is None else each)
        return Fact(Gpus(number), value_of("nproc_per_node", job).origin)
    if request.exclusive:
        return Fact(None, value_of("exclusive", asked, rows=ROWS).origin)
    raise UsageError(
        "the number of GPUs of each node is not set",
        "type --gpus-per-node N, 0 for none, or --exclusive for whole nodes",
    )


def _workers(job: Sequence[Layer]) -> int | None:
    workers = value_of("nproc_per_node", job).value
    return workers if isinstance(workers, int) else None


def _check_request(
    request: SlurmRequest,
    origins: Mapping[str, str],
    gpus: Fact[Gpus | None],
    job: Sequence[Layer],
) -> None:
    """Check values against each other.

    Raises:
        UsageError: two cannot both hold.

    """
    before = value_of("suspend_before", job)
    if request.time is not None and before.value and before.value >= request.time:
        raise UsageError(
            f"{before.origin}: {before.value:g} s before the end of a job of {request.time} s"
            f" ({origins['time']}) is before its start",
            "give a longer time, or fewer seconds",
        )
    for name in ("cpus_per_gpu", "memory_per_gpu"):
        if name in origins and gpus.value is None:
            raise UsageError(
                f"{origins[name]}: how many GPUs a node has is not known with {gpus.origin} alone",
                f"type --gpus-per-node N, or leave {origins[name]} out: whole nodes have all of"
                " theirs",
            )


def _name_of(script: str, job: Sequence[Layer]) -> str:
    """Return a name for the job: ``train`` for train.py, ``pkg.train`` for a module."""
    name = script if value_of("module", job).value else PurePath(script).stem
    plain = "".join(each if each.isalnum() or each in "._-" else "-" for each in name)
    return plain.strip("-.") or "clusterrun"


def path_of_launcher(interpreter: str) -> tuple[str, ...]:
    """Return the words that start the clusterrun of this ``interpreter``, in any environment."""
    beside = Path(interpreter).with_name("clusterrun")
    return (str(beside),) if beside.is_file() else (interpreter, "-m", "clusterrun")


def _typed(row: Row, job: Sequence[Layer], *, is_elastic: bool) -> Iterator[tuple[str, ...]]:
    """Yield an option as each node gets it typed, if it is set, and not by Slurm there."""
    set_by = [layer[row.name] for layer in job if row.name in layer]
    comes_from_slurm = row.name in FROM_SLURM and row.name not in job[0]
    is_plain_number = row.name == "nnodes" and not is_elastic
    if not set_by or row.name in {"env", *OF_THIS_CALL} or comes_from_slurm or is_plain_number:
        return
    for text in set_by[0] if row.value.repeated else set_by[0][-1:]:
        if row.metavar or row.value.read(text.value):
            yield tuple(words_of(row, text.value, row.flag))


def _env(job: Sequence[Layer]) -> str:
    settings = environment(job)
    for name, fact in settings.items():
        if "\n" in fact.value:
            raise UsageError(
                f"{fact.origin}: {name} has a line break, and a job in a queue can't have it",
                "write it to a file that only you can read, and have the script read it",
            )
    return "\n".join(f"{name}={fact.value}" for name, fact in settings.items())


def _left_out(by_variables: Sequence[Layer]) -> tuple[str, ...]:
    """Return the variables whose values the command does not have.

    sbatch gives a job the variables of the shell in which it is submitted: there an agent would read
    them all the same, and use ssh, or hosts that are not Slurm's.
    """
    names = (*sorted(OF_THIS_CALL | FROM_SLURM), "nnodes")
    return tuple(
        text.origin for layer in by_variables for name in names for text in layer.get(name, ())
    )


def _requeue_warning(request: SlurmRequest, job: Sequence[Layer]) -> str:
    """Return a warning if the job is to be put back, and nothing suspends it before its end; or "".

    It may be meant: SIGTERM asks for a suspension too, when another job takes the nodes.
    """
    requeue = value_of("requeue", job)
    ways = ("suspend_before", "suspend_signal", "suspend_hook")
    is_signalled = any("--signal" in each for each in request.directive)
    if not requeue.value or is_signalled or any(value_of(name, job).value for name in ways):
        return ""
    return (
        f"{requeue.origin}: nothing suspends the job before its time limit, which ends it for good:"
        " type --suspend-before 300, too"
    )


# The script

WIDTH = 98
"""Of a line; a longer command is continued."""

SCHEMES = ("docker://", "oras://", "library://", "shub://", "docker-daemon:", "oci:")
"""How images begin that apptainer builds itself (apptainer-exec(1))."""

_SAFE = re.compile(r"[\w@%+=:,./-]+")

PRIVATELY = "(umask 077; clusterrun submit --print ... > FILE)"


def script_of(job: Submission) -> str:
    """Return the batch script of ``job`` (sbatch(1)), as shellcheck likes it; the same for equal jobs."""
    command = [["exec", "srun"], *_step(job), *_container(job), *_words(job)]
    lines = [
        "#!/usr/bin/env bash",
        "# Written by clusterrun submit. Edit it as you like; to submit it: sbatch FILE",
        *(f"#SBATCH {line}" for line in _directives(job)),
        "",
        *_setup(job),
    ]
    if job.cpus is None:
        lines += [
            "# The CPUs that the job has on each node: srun alone gives a task one core.",
            "cpus=${SLURM_JOB_CPUS_PER_NODE%%[(,]*}",
        ]
    lines += ["# exec: signals and the exit code are those of srun.", *_command_lines(command), ""]
    return "\n".join(lines)


def _directives(job: Submission) -> Iterator[str]:
    asked = job.request
    yield f"--job-name={job.job_name}"
    fewest, most = job.fewest_nodes, job.nodes
    yield f"--nodes={most if fewest == most else f'{fewest}-{most}'}"
    # One agent on each node starts the workers of all of its GPUs.
    yield "--ntasks-per-node=1"
    if job.gpus and job.needs_gpus:
        yield f"--gpus-per-node={job.gpus}"
    if job.cpus:
        yield f"--cpus-per-task={job.cpus}"
    if job.memory is not None:
        size = job.memory
        yield f"--mem={size // 1024}G" if size % 1024 == 0 else f"--mem={size}M"
    elif asked.exclusive:
        # All memory of the nodes.
        yield "--mem=0"
    if asked.exclusive:
        yield "--exclusive"
    if asked.time is not None:
        days, rest = divmod(asked.time, 86_400)
        minutes, seconds = divmod(rest, 60)
        clock = f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
        yield f"--time={f'{days}-' if days else ''}{clock}"
    for name in ("partition", "account", "qos"):
        if value := getattr(asked, name):
            yield f"--{name}={value}"
    if asked.constraint:
        yield f'--constraint="{asked.constraint}"'
    if job.outlives_nodes:
        yield "--no-kill"
    if job.requeue:
        yield "--requeue"
        # The next turn does not overwrite what the last one has printed.
        yield "--open-mode=append"
    yield from asked.directive


def _setup(job: Submission) -> list[str]:
    """Return the lines before the job starts: its variables, then the user's own lines."""
    lines: list[str] = []
    if job.unset:
        lines.append("# Set where the job was submitted; here Slurm's own values count.")
        lines.append(f"unset {' '.join(job.unset)}")
    if job.env:
        lines += [
            "# What --env says: all users of a node can read its command lines. If one of these is a",
            f"# secret, keep this file so that you alone can read it: {PRIVATELY}",
            f"export {ENV_VARIABLE}={_quoted(job.env)}",
        ]
    if job.request.setup:
        # Without the environment, the job would fail in a way that is harder to read.
        lines += ["set -e", *job.request.setup]
    return [*lines, ""] if lines else []


def _step(job: Submission) -> Iterator[Sequence[str]]:
    """Yield the options of srun, in groups."""
    if job.env:
        # Whatever sbatch --export says.
        yield ["--export=ALL"]
    # Since Slurm 22.05, srun does not take it from sbatch.
    cpus = '"$cpus"' if job.cpus is None else job.cpus
    yield [f"--cpus-per-task={cpus}"]
    if job.outlives_nodes:
        yield ["--kill-on-bad-exit=0"]


def _container(job: Submission) -> Iterator[Sequence[str]]:
    image, mounts = job.request.image, job.request.mounts
    if image.endswith(".sif") or image.startswith(SCHEMES):
        yield ["apptainer", "exec"]
        if job.needs_gpus:
            # NVIDIA's and AMD's libraries; apptainer warns of the one that is missing.
            yield ["--nv"]
        yield ["--pwd", '"$PWD"', "--bind", '"$PWD"']
        yield from (["--bind", _quoted(mount)] for mount in mounts)
        yield [_quoted(image)]
    elif image:
        yield [f"--container-image={_quoted(image)}"]
        folders = ",".join(['"$PWD:$PWD"', *map(_quoted, mounts)])
        yield [f"--container-mounts={folders}", '--container-workdir="$PWD"']


def _words(job: Submission) -> Iterator[Sequence[str]]:
    script, *args = job.words
    for group in (job.launcher, *job.options, [script], *([each] for each in args)):
        yield [_quoted(word) for word in group]


def _quoted(word: str) -> str:
    """Return ``word`` as one word of a shell, which expands nothing in it."""
    if _SAFE.fullmatch(word):
        return word
    if re.search(r"['$`\\]", word):
        # In single quotes, shellcheck takes a $ or a \ for a mistake.
        return '"' + re.sub(r'(["\\$`])', r"\\\1", word) + '"'
    return f"'{word}'"


def _command_lines(groups: Iterable[Sequence[str]]) -> list[str]:
    """Return a command of words that are quoted already, with line breaks between ``groups`` only."""
    first, *others = (" ".join(group) for group in groups)
    lines = [first]
    for text in others:
        if len(lines[-1]) + len(text) > WIDTH:
            lines.append(f"    {text}")
        else:
            lines[-1] += f" {text}"
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


# The submission

SECONDS_TO_ANSWER = 60.0
"""A controller that starts or is overloaded takes this long to queue a job."""

NO_ANSWER = (
    *("unable to contact", "timed out on send/recv"),
    "could not establish a configuration source",
)
"""Words of a command of Slurm that has reached no controller, in lower case."""

BLAMED = {
    "nnodes": "node count|node configuration",
    "gpus_per_node": "generic resource|gres|node configuration",
    "cpus_per_gpu": "processor|cpu count|node configuration",
    "memory_per_gpu": "memory|node configuration",
    "time": "time limit",
    "partition": "partition|time limit|node configuration",
    "account": "account|partition",
    "qos": "qos",
    "constraint": "feature|constraint|node configuration",
}
"""By value: words of a refusal, in lower case, that concern it."""

LIST_NODES = ("sinfo", "--noheader", "--Node", "--format=%c %G")
"""CPUs and generic resources of each node (sinfo(1))."""

Ask = Callable[..., Answer]
"""Runs a command of Slurm: takes its words and, if it reads any, its standard input."""


class QueuedJob(Struct, frozen=True):
    """A job that Slurm has taken."""

    number: str
    where: tuple[str, ...] = ()
    """The option by which Slurm's commands find its cluster; () for the one that they ask anyway."""

    def typed(self, command: str, *options: str) -> str:
        """Return a line to type: ``squeue -j 7``."""
        return " ".join([command, *self.where, *options, self.number])


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print or submit the job.

    Its number alone goes to standard output, or with ``--follow`` what the job prints.

    Raises:
        UsageError: something is impossible, or Slurm refuses the job.

    """
    if line.words:
        program = WorkerProgram(ProgramKind.SCRIPT, line.words[0], line.words[1:])
        warn(misplaced_options(program, by_any_name({**OPTIONS, **ROWS})))
    job, how = describe(line, environ, this_process(called)), line.read(Submit)

    def ask_slurm(words: Sequence[str], stdin: str = "") -> Answer:
        return ask(words, environ, stdin, SECONDS_TO_ANSWER)

    job = with_cpus(job, ask_slurm)
    text = script_of(job)
    _expect_utf_8(job, text)
    if job.warning:
        warn([job.warning])
    if how.print:
        if job.env and _others_can_read_output():
            warn([f"other users can read this file, and it has what --env says: type {PRIVATELY}"])
        return print_text(text.rstrip("\n"))
    if not find_executable("sbatch", environ.get("PATH", "")):
        raise UsageError(
            "this machine has no Slurm: sbatch is not on PATH",
            "type it on a login node, or add --print to see what would be submitted\n"
            "for LSF, PBS, Flux and Kubernetes, edit a file of configs: docs/submit.md",
        )
    queued = submit(job, text, ask_slurm)
    complain(f"clusterrun: Slurm has queued job {queued.number} ({job.job_name})")
    if how.follow:
        return follow(queued, ask_slurm)
    complain(f"  to see it: {queued.typed('squeue', '-j')}\n  to end it: {queued.typed('scancel')}")
    return print_text(queued.number)


def _others_can_read_output() -> bool:
    try:
        mode = os.fstat(1).st_mode
    except OSError:
        # It was closed.
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o077)


def _expect_utf_8(job: Submission, text: str) -> None:
    """Check that the script can be written: a file name or an argument may be any bytes."""
    for each in (*job.words, *text.splitlines()):
        try:
            each.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"the script of a job can't have text that is not UTF-8: {each!a}",
                "rename the file, or have the program read what it needs from a file",
            ) from None


def with_cpus(job: Submission, ask: Ask) -> Submission:
    """Return the job with the CPUs of each GPU, its part of a node of the partition.

    As it is where they are set, or Slurm does not say.
    """
    request = job.request
    is_set = request.cpus_per_gpu is not None or request.exclusive
    if is_set or job.gpus is None or not job.needs_gpus:
        return job
    where = (f"--partition={request.partition}",) if request.partition else ()
    answer = ask([*LIST_NODES, *where])
    found = cpus_of_a_gpu(answer.out) if answer.code == 0 else None
    return replace(job, request=replace(request, cpus_per_gpu=found)) if found else job


def cpus_of_a_gpu(listed: str) -> int | None:
    """Return how many CPUs each GPU has on the node with the fewest; None: there is no such number.

    ``listed`` has lines such as ``64 gpu:h100:8(S:0-1)``.
    """
    found = [re.match(r"(\d+)\+? (.*)", line.strip()) for line in listed.splitlines()]
    parts = [
        int(each[1]) // gpus
        for each in found
        if each and (gpus := sum(map(int, re.findall(r"gpu:(?:[\w.-]+:)?(\d+)", each[2]))))
    ]
    return min(parts, default=0) or None


def submit(job: Submission, script: str, ask: Ask) -> QueuedJob:
    """Submit the script.

    Raises:
        UsageError: Slurm refuses the job, and the hint has the values that it refuses; or it does
            not answer.
        MachineError: it has taken the job, and has not said its number.

    """
    answer = ask(["sbatch", "--parsable"], script)
    if answer.code != 0:
        raise _refusal(job, answer)
    # "17", or "17;east" in a federation or with -M; a cluster may print its news first.
    last = answer.out.strip().rpartition("\n")[2].strip()
    number, _, cluster = last.partition(";")
    if not number:
        said = " ".join(f"{answer.out} {answer.err}".split())
        raise MachineError(
            f"Slurm has taken the job, and its number is unknown: {said or 'nothing printed'}",
            f"to find it by its name, {job.job_name}, type squeue",
        )
    return QueuedJob(number, (f"--clusters={cluster}",) if cluster else ())


def _refusal(job: Submission, answer: Answer) -> UsageError:
    refusal = " ".join(answer.trouble.split())
    if answer.code is None or any(words in refusal.lower() for words in NO_ANSWER):
        return UsageError(f"Slurm does not answer: {refusal}", "try again later")
    blamed = [
        f"{name} is set by {job.origins[name]}"
        for name, words in BLAMED.items()
        if name in job.origins and re.search(words, refusal.lower())
    ]
    return UsageError(f"Slurm refuses the job: {refusal}", "\n".join(blamed))


# What Slurm says of a job

ENDS: Mapping[str, int] = {
    "BOOT_FAIL": ExitCode.NODE_LOST,
    "CANCELLED": exit_code_of_signal(15),
    "COMPLETED": 0,
    "DEADLINE": 124,
    "FAILED": 1,
    "NODE_FAIL": ExitCode.NODE_LOST,
    "OUT_OF_MEMORY": exit_code_of_signal(9),
    "PREEMPTED": exit_code_of_signal(15),
    "REVOKED": 1,
    "TIMEOUT": 124,
}
"""States of a job that has ended ("JOB STATE CODES" of squeue(1)), and the exit code of one that has
no other; 124 as timeout(1) has it."""

STARTED = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "SUSPENDED", "RESIZING"}


class JobState(Struct, frozen=True):
    """The state of a job, or of one of the jobs of an array."""

    job_id: str
    words: str
    """Slurm's own: ``PENDING (Resources)``."""
    exit_code: int | None = None
    """The job's own, or what stands for the reason of its end; None: it has not ended."""
    output: Path | None = None
    """Where Slurm writes its standard output; None: unknown."""
    error: Path | None = None
    """None: unknown, or the same file."""


class NoSlurmAnswer(Exception):
    """Slurm does not answer; the message is its own."""


def states_of(job: QueuedJob, ask: Ask) -> tuple[JobState, ...]:
    """Return the state of a job, or of each of an array; () if Slurm has forgotten it.

    Raises:
        NoSlurmAnswer: Slurm does not answer.

    """
    answer = ask(["scontrol", "--oneliner", *job.where, "show", "job", job.number])
    if answer.code != 0 and "Invalid job id" not in answer.trouble:
        raise NoSlurmAnswer(answer.trouble)
    # A path may have blanks: a value ends before the next name.
    pattern = re.compile(r"(\w+)=(.*?)(?= +[\w:/]+=|\s*$)")
    lines = (dict(pattern.findall(line)) for line in answer.out.splitlines())
    return tuple(_state(fields) for fields in lines if "JobState" in fields)


def _state(fields: Mapping[str, str]) -> JobState:
    """Read a line of ``scontrol show job``: a job, one of an array, or those of it that wait."""
    state, task, reason = fields["JobState"], fields.get("ArrayTaskId"), fields.get("Reason")
    job_id = f"{fields['ArrayJobId']}_{task}" if task else fields["JobId"]
    if state not in ENDS and state not in STARTED:
        why = f" ({reason})" if reason not in {"", "None", None} else ""
        return JobState(job_id, state + why)
    output, error = (_path(fields.get(name, "")) for name in ("StdOut", "StdErr"))
    error = None if error == output else error
    if state in STARTED:
        return JobState(job_id, state, None, output, error)
    status, _, number = fields.get("ExitCode", "0:0").partition(":")
    own = int(status) or (exit_code_of_signal(int(number)) if int(number or 0) else 0)
    # Slurm has signal 125 for a job that was killed for its memory.
    is_own = own and state in {"FAILED", "CANCELLED", "PREEMPTED"}
    return JobState(job_id, state, own if is_own else ENDS[state], output, error)


def _path(text: str) -> Path | None:
    return Path(text) if text not in {"", "/dev/null", "(null)"} else None


# The way to its end

SECONDS_BETWEEN_READS = 1.0
"""How late a line of the job may be."""

LONGEST_PAUSE = 15
"""Seconds between two questions to the controller, which serves others, too."""

MOST_BYTES = 1 << 20
"""At once, of each file."""

UNKNOWN_END = 1
"""The exit code of a job whose end Slurm has forgotten."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""By which a user leaves a job that goes on."""


class _Left(Exception):
    """The user has seen enough; the argument is the signal's number."""


class _GrowingFile:
    """A file that is written by another host and need not exist yet; it is copied to ``stream``."""

    def __init__(self, path: Path, stream: TextIO | None) -> None:
        self._path = path
        self._stream = stream
        self._read = 0

    def show(self) -> None:
        """Copy what was added; a file that has become shorter begins anew."""
        # The stream may have been closed by who has started us.
        while (data := self._more()) and self._stream is not None:
            self._stream.buffer.write(data)
            self._stream.flush()

    def _more(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._read:
                    self._read = 0
                file.seek(self._read)
                data = file.read(MOST_BYTES)
        except OSError:
            return b""
        self._read += len(data)
        return data


def follow(job: QueuedJob, ask: Ask, pause: Callable[[float], None] = time.sleep) -> int:
    """Show a job to its end, and return its exit code; that of a signal if one came first.

    What it prints goes to standard output and standard error as it does there; its states go to
    standard error.

    Raises:
        MachineError: what it prints cannot be written.

    """
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _leave)
    files: dict[Path, _GrowingFile] = {}
    try:
        return _follow(job, ask, pause, files)
    except (_Left, BrokenPipeError) as left:
        # Of a pipe, the reader has seen enough.
        complain(f"\nclusterrun: {_goes_on(job, files)}")
        return exit_code_of_signal(left.args[0] if isinstance(left, _Left) else signal.SIGPIPE)
    except OSError as error:
        why = f"what the job prints can't be written: {error.strerror}"
        raise MachineError(why, _goes_on(job, files)) from None


def _leave(number: int, _frame: FrameType | None) -> None:
    # The next one does not keep the last line from being printed.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise _Left(number)


def _goes_on(job: QueuedJob, paths: Iterable[Path]) -> str:
    from shlex import join

    files = join(map(str, paths))
    see = f"tail -f {files}" if files else job.typed("squeue", "-j")
    return f"job {job.number} goes on; to see it: {see}; to end it: {job.typed('scancel')}"


def _follow(
    job: QueuedJob, ask: Ask, pause: Callable[[float], None], files: dict[Path, _GrowingFile]
) -> int:
    shown = ""
    # Short at first, for jobs that start or fail at once.
    for seconds in chain(range(1, LONGEST_PAUSE), repeat(LONGEST_PAUSE)):
        states: Sequence[JobState] = ()
        try:
            states = states_of(job, ask)
            text, is_over = _summary(states), all(each.exit_code is not None for each in states)
        except NoSlurmAnswer as error:
            # A controller that restarts or is busy answers later.
            text, is_over = f"Slurm does not answer: {error}", False
        if text not in {shown, ""}:
            shown = text
            complain(f"clusterrun: job {job.number}: {text}")
        for state in states:
            for stream, path in ((sys.stdout, state.output), (sys.stderr, state.error)):
                if path is not None and path not in files:
                    files[path] = _GrowingFile(path, stream)
        _show(files)
        if is_over:
            break
        for _ in range(seconds):
            pause(SECONDS_BETWEEN_READS)
            _show(files)
    return _report_end(job, states)


def _show(files: Mapping[Path, _GrowingFile]) -> None:
    for file in files.values():
        file.show()


def _summary(states: Sequence[JobState]) -> str:
    """Return ``RUNNING``, or for an array ``2 RUNNING, 1 PENDING (Resources)``."""
    if len(states) == 1:
        return states[0].words
    counts = Counter(state.words for state in states)
    return ", ".join(f"{number} {words}" for words, number in counts.items())


def _report_end(job: QueuedJob, states: Sequence[JobState]) -> int:
    """Return the exit code of a job that has ended, of an array the highest, as sbatch --wait does."""
    if not states:
        complain(f"clusterrun: Slurm does not know how job {job.number} has ended")
        return UNKNOWN_END
    worst = max(states, key=lambda state: state.exit_code or 0)
    code = worst.exit_code or 0
    which = f" ({worst.job_id})" if len(states) > 1 else ""
    complain(f"clusterrun: job {job.number} has ended: {worst.words}, exit code {code}{which}")
    return code
