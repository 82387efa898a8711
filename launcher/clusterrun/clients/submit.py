"""``clusterrun submit``: write the batch script of a job, submit it to Slurm, and follow the job.

This file has, in this order, the options, the job that they describe, its script, and the submission.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, ClassVar

from msgspec import Struct

from clusterrun.cli.printing import complain, print_text, warn
from clusterrun.clients.slurm_job import QueuedJob, SlurmCommand, follow
from clusterrun.errors import MachineError, UsageError, shell_line
from clusterrun.job.checks import check_compatible
from clusterrun.job.declarations import (
    Option,
    Row,
    Setting,
    Value,
    by_any_name,
    option_words,
    rows_of,
)
from clusterrun.job.job import Job, ProgramKind, SchedulerJob, WorkerProgram
from clusterrun.job.node_layout import requested_nodes
from clusterrun.job.options import OPTIONS, Launcher, NodeLauncher, Ssh
from clusterrun.job.program import (
    default_interpreter,
    find_executable,
    find_program,
    misplaced_options,
)
from clusterrun.job.removed_options import REMOVED_OPTIONS, REMOVED_SUBMIT_OPTIONS
from clusterrun.job.resolve import environment, read_sources, read_subjects
from clusterrun.job.scheduler import is_scheduler_ignored
from clusterrun.job.sources import ENV_VARIABLE, CommandLine, JobFile, Layer, layer_of, value_of
from clusterrun.job.this_process import CommandResult, ThisProcess, run_command, this_process
from clusterrun.job.torchrun import translate, with_conf
from clusterrun.job.values import number

# The options


class Gpus(Struct, frozen=True):
    """GPUs of one node."""

    number: int
    model: str = ""
    """Slurm's name, such as ``h100``; "" for any model."""

    def __str__(self) -> str:
        """Return the option's value, such as ``h100:8``."""
        return f"{self.model}:{self.number}" if self.model else str(self.number)


MIB = {"M": 1, "G": 1024, "T": 1024 * 1024}

_CLOCK_TIME = re.compile(r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]\d):([0-5]\d)")
_TIME_IN_UNITS = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")


def _time_limit(text: str) -> int:
    """Return the seconds in ``2:00:00``, ``1-12:00:00``, ``90m`` or ``1d12h``.

    A plain number is refused, because it means minutes to Slurm; ``2:30`` too, which means minutes and
    seconds.
    """
    found = _CLOCK_TIME.fullmatch(text) or _TIME_IN_UNITS.fullmatch(text)
    parts = found.groups() if found else ()
    seconds = sum(
        int(part or 0) * size for part, size in zip(parts, (86_400, 3_600, 60, 1), strict=False)
    )
    if seconds == 0:
        raise _invalid(text, "a time limit", "give, for example, 2:00:00, 90m, 12h or 1-12:00:00")
    return seconds


def _memory_size(text: str) -> int:
    """Return the MiB in ``64G`` or ``64GiB``."""
    found = re.fullmatch(r"([1-9]\d{0,8})([MGT])(?:i?B)?", text, re.IGNORECASE)
    if not found:
        raise _invalid(text, "a size of memory", "give, for example, 64G or 500M")
    return int(found[1]) * MIB[found[2].upper()]


def _gpus(text: str) -> Gpus:
    """Parse ``8`` or ``h100:8``."""
    found = re.fullmatch(r"(?:([A-Za-z0-9][\w./-]*):)?(\d{1,4})", text)
    if not found:
        raise _invalid(text, "a number of GPUs", "give, for example, 8 or h100:8; 0 for none")
    return Gpus(int(found[2]), found[1] or "")


def _mounts(text: str) -> tuple[str, ...]:
    """Parse ``SOURCE:TARGET,...``."""
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        if not re.fullmatch(r"/[^\s\"']*", part):
            raise _invalid(part, "a folder to mount", "give, for example, /data or /data:/mnt/data")
    return found


def _line(text: str) -> str:
    if len(text.strip().splitlines()) != 1:
        raise _invalid(text, "one line", "give one line")
    return text.strip()


def _directive(text: str) -> str:
    # After a second #SBATCH, the line would be a comment.
    return _line(text).removeprefix("#SBATCH").strip()


def _word(text: str) -> str:
    """Check that a word needs no quoting in a directive, where # begins a comment."""
    if not re.fullmatch(r"[^\s\"'\\#]+", text):
        raise _invalid(text, "one word", "give one without spaces, quotes, \\ and #")
    return text


def _invalid(text: str, what: str, hint: str) -> UsageError:
    shown = text if len(text) < 60 else f"{text[:60]}..."
    return UsageError(f"{shown!r} is not {what}", hint)


Word = Annotated[str, Value(_word, "NAME")]


class Submit(Struct, frozen=True):
    """Options for what ``clusterrun submit`` does with the script."""

    title: ClassVar = "What to do with the script"

    print: Annotated[bool, Option("Print the batch script, and submit nothing")] = False
    follow: Annotated[
        bool,
        Option(
            "Show the job's state and output, and exit with its exit code; Ctrl-C leaves it running"
        ),
    ] = False


class SlurmRequest(Struct, frozen=True):
    """Options for the resources that a job requests from Slurm; "" and None mean not set."""

    title: ClassVar = "What to request from Slurm"

    job_name: Annotated[Word, Option("The job's name", default="that of SCRIPT")] = ""
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
            default="each GPU's share of a node's CPUs, from sinfo; one for each worker without a GPU",
        ),
    ] = None
    memory_per_gpu: Annotated[
        int | None,
        Value(_memory_size, "SIZE"),
        Option("Memory for each GPU or worker, such as 64G", default="Slurm's; all if --exclusive"),
    ] = None
    """MiB."""
    time: Annotated[
        int | None,
        Value(_time_limit, "LIMIT"),
        Option("Its time limit, such as 2:00:00, 90m or 1-12:00:00", default="the partition's"),
    ] = None
    """Seconds."""
    partition: Annotated[Word, Option("The partition", aliases=("queue",), default="Slurm's")] = ""
    account: Annotated[Word, Option("The account to charge", default="Slurm's")] = ""
    qos: Annotated[Word, Option("The quality of service", default="Slurm's")] = ""
    constraint: Annotated[
        Word, Option("Features of the nodes, such as a100|h100", metavar="FEATURES", default="none")
    ] = ""
    exclusive: Annotated[bool, Option("Whole nodes, with all of their GPUs, CPUs and memory")] = (
        False
    )
    image: Annotated[
        str,
        Value(_line, "IMAGE"),
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
            "Any other option of sbatch, such as --mail-type=END; may be repeated", default="none"
        ),
    ] = ()


ROWS = rows_of(Submit, SlurmRequest)


def unknown_option(words: Sequence[str], known: Sequence[str]) -> UsageError | None:
    """Return the error for an unknown option, with which ``words`` begin.

    Return None if it abbreviates or resembles one of the ``known`` flags. An option of Slurm is not taken
    for an abbreviation: ``--mem`` is not ``--memory-per-gpu``.
    """
    from clusterrun.job.foreign_options import common_option, foreign_option
    from clusterrun.job.suggestions import closest

    typed = words[0].partition("=")[0]
    name = typed.lstrip("-").replace("_", "-")
    removed = REMOVED_OPTIONS | REMOVED_SUBMIT_OPTIONS
    if instead := removed.get(name.replace("-", "_")):
        return UsageError(f"there is no option {typed} any more", instead)
    is_slurms = "srun" in (foreign_option(name) or {})
    is_nearly_ours = len(name) > 1 and any(each.startswith(name) for each in known)
    if not is_slurms and (is_nearly_ours or common_option(name, known) or closest(name, known)):
        return None
    directive = words[0] if "=" in words[0] else f"{typed} ..."
    return UsageError(
        f"there is no option {typed}",
        f"if it is sbatch's, use clusterrun's equivalent (clusterrun submit --help), or"
        f" --directive={shell_line([directive])}\nif it is the script's, put it after the script",
    )


# The job


class Submission(Struct, frozen=True):
    """A job to submit: its resources, and the command that runs on each node."""

    request: SlurmRequest
    job_name: str
    nodes: str
    """The value of sbatch's --nodes, with spares: ``3``, or with MIN:MAX ``2-4``."""
    survives_node_loss: bool
    """Whether the job continues after the loss of a node, so Slurm must not end it."""
    gpus: Gpus | None
    """Per node; None for all GPUs of whole nodes."""
    cpus: int | None
    """Per node; None for Slurm's default."""
    memory: int | None
    """MiB per node; None for Slurm's default."""
    requeue: bool
    launcher: tuple[str, ...]
    """The words that start clusterrun: its path, or in a container its name."""
    options: tuple[tuple[str, ...], ...]
    """clusterrun's options, each with its value, such as ``("--max-restarts", "2")``.

    They include values from the job file and from variables, which may have changed when the job starts.
    """
    words: tuple[str, ...]
    """SCRIPT and its arguments."""
    env: str
    """The value of ``ENV_VARIABLE``, from ``--env`` and the job file; "" if it is not set."""
    unset: tuple[str, ...]
    """Variables of the submitting shell that clusterrun must not read on the nodes."""
    warning: str | None
    """A warning for the user."""


LAUNCH_OPTIONS = set(rows_of(Launcher))
"""Options that are not part of a job, or are replaced by their values."""

SLURM_SETS = {
    *("hosts", "hostfile", "node_rank", "cluster", "master_addr", "master_port", "rdzv_endpoint"),
    *rows_of(Ssh),
}
"""Options by which nodes find each other without a scheduler; they are kept only if they are flags."""


def describe(
    line: CommandLine, environ: Mapping[str, str], process: ThisProcess, ask: SlurmCommand
) -> Submission:
    """Return the job that the command line, ``environ`` and the job file describe.

    Raises:
        UsageError: the described job is impossible.

    """
    job, words, job_file = read_sources(line, environ)
    request = line.read(SlurmRequest)
    _check_options(job, request)
    # --setup may activate an environment with a different clusterrun.
    is_on_path = bool(request.image or request.setup)
    if request.image and words.value:
        # The program may exist only in the image.
        is_any = value_of("no_python", job).value
        kind = ProgramKind.EXECUTABLE if is_any else ProgramKind.SCRIPT
        program = WorkerProgram(kind, words.value[0], words.value[1:])
    else:
        program = find_program(words, job, environ.get("PATH", "")).value
    if program.is_standard_input:
        raise UsageError(
            f"a script on standard input ({program.name}) can't wait in a queue",
            "save it to a file, and give the file",
        )
    _check_on_nodes(job, program, job_file, environ, process.called)
    if not request.image:
        python = default_interpreter(program, process, environ)
        if python.origin != "default" and not is_on_path:
            # The environment that is active here may not be active on the nodes.
            job = (*job, layer_of(python=python))
    asked, nnodes = requested_nodes(job), value_of("nnodes", job).value
    nodes = asked.value.maximum if asked else 1
    is_elastic = nnodes.minimum != nnodes.maximum
    ways = ("spares", "rejoin_timeout")
    keeps_going = is_elastic or any(value_of(name, job).value for name in ways)
    per_node = value_of("nproc_per_node", job).value
    # With services, only the user knows how many GPUs a node needs.
    is_count = isinstance(per_node, int) and not job_file.services
    workers = per_node if is_count else None
    gpus = _gpus_per_node(request, workers, value_of("gpus_per_worker", job).value)
    partition = request.partition or environ.get("SBATCH_PARTITION", "")
    cpus = _cpus_per_gpu(request, gpus, workers, partition, ask)
    memory = request.memory_per_gpu
    # Without GPUs, the amounts are per worker.
    units = (gpus and gpus.number) or workers or 1
    in_options, in_words = with_conf(job), words.value
    if job_file.services:
        # Services can't be options, so the nodes read the job file.
        in_options = with_conf(job[:3])
        config = value_of("config", job[:3]).value
        in_words = ("--config", config, *(["--"] if line.after_dashes else []), *line.words)
    elif in_words[1:2] == ("--",):
        # The nodes remove one, as torchrun does.
        in_words = (in_words[0], "--", *in_words[1:])
    return Submission(
        request=request,
        job_name=request.job_name or _default_name(words.value[0], job),
        nodes=f"{nnodes.minimum}-{nodes}" if is_elastic else str(nodes),
        survives_node_loss=nodes > 1 and keeps_going,
        gpus=gpus,
        cpus=cpus and cpus * units,
        memory=memory and memory * units,
        requeue=value_of("requeue", job).value,
        launcher=("clusterrun",) if is_on_path else launcher_command(process.python),
        options=tuple(
            option
            for row in OPTIONS.values()
            if (option := _option_words(row, in_options, is_elastic=is_elastic))
        ),
        words=in_words,
        env=_env_setting(in_options),
        unset=_variables_to_unset(job[1:3]),
        warning=_requeue_warning(request, job),
    )


def _check_options(job: Sequence[Layer], request: SlurmRequest) -> None:
    """Check that the options are possible for a queued job.

    Raises:
        UsageError: an option is not; the message begins with where it is set.

    """
    found = {name: value_of(name, job) for name in OPTIONS}
    starts = value_of("launcher", job[:1])
    if starts.value is not NodeLauncher.NONE:
        raise UsageError(
            f"{starts.origin} {starts.value.value} starts the job now, but submit has Slurm start"
            " it later",
            f"remove submit or {starts.origin}",
        )
    if found["dry_run"].value:
        raise UsageError(
            f"{found['dry_run'].origin} works only with a job that starts now",
            "to see what would be submitted, use --print",
        )
    if found["pdb"].value:
        raise UsageError(
            f"{found['pdb'].origin} needs a terminal, but a queued job has none",
            "start the job in an allocation instead: salloc, then srun --pty",
        )
    before = found["suspend_before"]
    if request.time is not None and before.value and before.value >= request.time:
        raise UsageError(
            f"{before.origin} is {before.value:g} s, but the job's time limit is only"
            f" {request.time} s (--time)",
            "give a longer time, or fewer seconds",
        )


def _check_on_nodes(
    sources: Sequence[Layer],
    program: WorkerProgram,
    job_file: JobFile,
    environ: Mapping[str, str],
    called: str,
) -> None:
    """Check what each node checks, so that no impossible job waits in the queue.

    Raises:
        UsageError: two options are incompatible.

    """
    typed, *others = sources
    kept = [
        {name: texts for name, texts in layer.items() if name not in SLURM_SETS} for layer in others
    ]
    layers, _ = translate((typed, *kept), {}, called=called)
    # Slurm sets the rank of the node.
    layers = (layer_of(node_rank=Setting(0, "Slurm")), *layers)
    origins = {name: value_of(name, layers).origin for name in OPTIONS}
    is_ignored = is_scheduler_ignored(value_of("cluster", layers), origins["standalone"])
    env = environment(layers)
    job = Job(
        **read_subjects(layers),
        script=program,
        signals_to_handle="",
        scheduler=None if is_ignored else SchedulerJob("Slurm", "", (), ()),
        origins={**origins, **{f"env.{name}": setting.origin for name, setting in env.items()}},
    )
    if job_file.services:
        from clusterrun.job.services import known_values, with_services

        _, late_env = known_values(env, environ)
        job = with_services(job, job_file, late_env, has_main_count=True)
    check_compatible(job)


def _gpus_per_node(
    request: SlurmRequest, workers: int | None, gpus_per_worker: int | None
) -> Gpus | None:
    """Return the GPUs of a node from options or from its workers; None for all GPUs of whole nodes.

    Raises:
        UsageError: no option determines the GPUs.

    """
    if request.gpus_per_node is not None:
        return request.gpus_per_node
    if workers:
        return Gpus(workers * (1 if gpus_per_worker is None else gpus_per_worker))
    if not request.exclusive:
        raise UsageError(
            "the number of GPUs of each node is not set",
            "add --gpus-per-node N, 0 for none, or --exclusive for whole nodes",
        )
    if request.cpus_per_gpu or request.memory_per_gpu:
        raise UsageError(
            "with --exclusive alone, how many GPUs a node has is not known",
            "add --gpus-per-node N, or remove --cpus-per-gpu and --memory-per-gpu: a job on whole"
            " nodes gets all of their CPUs and memory",
        )
    return None


def _cpus_per_gpu(
    request: SlurmRequest,
    gpus: Gpus | None,
    workers: int | None,
    partition: str,
    ask: SlurmCommand,
) -> int | None:
    """Return the CPUs for each GPU, or for each worker without GPUs; None for Slurm's default."""
    if request.cpus_per_gpu or request.exclusive or gpus is None:
        return request.cpus_per_gpu
    # Slurm's default is one CPU for all workers of a node.
    return _cpus_per_gpu_from_sinfo(partition, ask) if gpus.number else workers and 1


def _cpus_per_gpu_from_sinfo(partition: str, ask: SlurmCommand) -> int | None:
    """Return the CPUs per GPU of the partition's nodes, the fewest of any; None if Slurm does not say.

    Without ``partition``, it is the default one, which sinfo marks with a ``*``.
    """
    where, mark = ([f"--partition={partition}"], r"\*?") if partition else ([], r"\*")
    # Lines such as "a100* 64 gpu:h100:8(S:0-1)" have the CPUs and the generic resources of a node.
    answer = ask(["sinfo", "--noheader", "--Node", "--format=%P %c %G", *where])
    line = re.compile(rf"\S*{mark} (\d+)\+? (.*)")
    found = [line.match(each.strip()) for each in answer.out.splitlines()]
    shares = [
        int(each[1]) // gpus
        for each in found
        if each and (gpus := sum(map(int, re.findall(r"gpu:(?:[\w.-]+:)?(\d+)", each[2]))))
    ]
    return min(shares, default=0) or None


def _default_name(script: str, job: Sequence[Layer]) -> str:
    """Return a name for the job: ``train`` for train.py, ``pkg.train`` for a module."""
    name = script if value_of("module", job).value else PurePath(script).stem
    plain = "".join(each if each.isalnum() or each in "._-" else "-" for each in name)
    return plain.strip("-.") or "clusterrun"


def launcher_command(interpreter: str) -> tuple[str, ...]:
    """Return the words that start the clusterrun of ``interpreter``, whatever environment is active."""
    beside = Path(interpreter).with_name("clusterrun")
    return (str(beside),) if beside.is_file() else (interpreter, "-m", "clusterrun")


def _option_words(row: Row, job: Sequence[Layer], *, is_elastic: bool) -> tuple[str, ...]:
    """Return an option for the nodes' command line; () if it is not set or Slurm sets it."""
    set_by = [layer[row.name] for layer in job if row.name in layer]
    comes_from_slurm = row.name in SLURM_SETS and row.name not in job[0]
    is_plain_number = row.name == "nnodes" and not is_elastic
    # With --exec, only a variable may set it, and the nodes inherit the variable.
    is_ignored = row.name == "log_dir" and value_of("exec", job).value
    if (
        not set_by
        or row.name in {"env", *LAUNCH_OPTIONS}
        or comes_from_slurm
        or is_plain_number
        or is_ignored
    ):
        return ()
    text = set_by[0][-1].value
    return tuple(option_words(row, text, row.flag)) if row.metavar or row.value.read(text) else ()


def _env_setting(job: Sequence[Layer]) -> str:
    settings = environment(job)
    for name, fact in settings.items():
        if "\n" in fact.value:
            raise UsageError(
                f"{fact.origin}: {name} contains a line break, which can't be passed to a queued job",
                "write it to a file that only you can read, and have the script read it",
            )
    return "\n".join(f"{name}={fact.value}" for name, fact in settings.items())


def _variables_to_unset(by_variables: Sequence[Layer]) -> tuple[str, ...]:
    """Return the variables that set options which the nodes' command line does not have.

    sbatch passes the submitting shell's variables to the job, where an agent would read them, and use
    ssh or hosts that are not Slurm's.
    """
    names = (*sorted(LAUNCH_OPTIONS | SLURM_SETS), "nnodes")
    return tuple(
        text.origin for layer in by_variables for name in names for text in layer.get(name, ())
    )


def _requeue_warning(request: SlurmRequest, job: Sequence[Layer]) -> str | None:
    """Return a warning if the job is requeued but nothing suspends it before its time limit.

    This can be intended, because SIGTERM, which preempts the job, suspends it, too.
    """
    requeue = value_of("requeue", job)
    ways = ("suspend_before", "suspend_signal", "suspend_hook")
    is_signalled = any("--signal" in each for each in request.directive)
    if not requeue.value or is_signalled or any(value_of(name, job).value for name in ways):
        return None
    return (
        f"{requeue.origin}: nothing suspends the job before its time limit, so the limit ends it"
        " for good: add --suspend-before 300"
    )


# The script

MAX_LINE_WIDTH = 98
"""A longer command is continued on the next line."""

SCHEMES = ("docker://", "oras://", "library://", "shub://", "docker-daemon:", "oci:")
"""Prefixes of images that apptainer builds itself (apptainer-exec(1))."""

_SAFE = re.compile(r"[\w@%+=:,./-]+")

PRIVATE_FILE = "(umask 077; clusterrun submit --print ... > FILE)"


def script_of(job: Submission) -> str:
    """Return the batch script (sbatch(1)), which passes shellcheck; equal jobs give equal scripts."""
    command = [["exec", "srun"], *_srun_options(job), *_container(job), *_command_words(job)]
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
    request = job.request
    yield f"--job-name={job.job_name}"
    yield f"--nodes={job.nodes}"
    # One agent on each node starts the workers of all of its GPUs.
    yield "--ntasks-per-node=1"
    if job.gpus is not None and job.gpus.number:
        yield f"--gpus-per-node={job.gpus}"
    if job.cpus:
        yield f"--cpus-per-task={job.cpus}"
    if job.memory is not None:
        size = job.memory
        yield f"--mem={size // 1024}G" if size % 1024 == 0 else f"--mem={size}M"
    elif request.exclusive:
        # All memory of the nodes.
        yield "--mem=0"
    if request.exclusive:
        yield "--exclusive"
    if request.time is not None:
        days, rest = divmod(request.time, 86_400)
        minutes, seconds = divmod(rest, 60)
        clock = f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
        yield f"--time={f'{days}-' if days else ''}{clock}"
    for name in ("partition", "account", "qos", "constraint"):
        if value := getattr(request, name):
            yield f"--{name}={value}"
    if job.survives_node_loss:
        yield "--no-kill"
    if job.requeue:
        yield "--requeue"
        # The next run must not overwrite the output of the last one.
        yield "--open-mode=append"
    yield from request.directive


def _setup(job: Submission) -> list[str]:
    """Return the lines before the command: variables, then the lines of --setup."""
    lines: list[str] = []
    if job.unset:
        lines.append(
            "# Inherited from the shell that submitted the job; in the job, Slurm's own values"
            " apply."
        )
        lines.append(f"unset {' '.join(job.unset)}")
    if job.env:
        lines += [
            "# What --env says: all users of a node can read its command lines. If one of these is a",
            f"# secret, keep this file so that you alone can read it: {PRIVATE_FILE}",
            f"export {ENV_VARIABLE}={_quoted(job.env)}",
        ]
    if job.request.setup:
        # If the setup fails, stop, because later errors would be harder to understand.
        lines += ["set -e", *job.request.setup]
    return [*lines, ""] if lines else []


def _srun_options(job: Submission) -> Iterator[Sequence[str]]:
    """Yield the options of srun."""
    if job.env:
        # In case sbatch has --export.
        yield ["--export=ALL"]
    # Since Slurm 22.05, srun does not inherit it from sbatch.
    cpus = '"$cpus"' if job.cpus is None else job.cpus
    yield [f"--cpus-per-task={cpus}"]
    if job.survives_node_loss:
        yield ["--kill-on-bad-exit=0"]


def _container(job: Submission) -> Iterator[Sequence[str]]:
    image, mounts = job.request.image, job.request.mounts
    if image.endswith(".sif") or image.startswith(SCHEMES):
        yield ["apptainer", "exec"]
        if job.gpus is None or job.gpus.number:
            # Binds NVIDIA's libraries.
            yield ["--nv"]
        yield ["--pwd", '"$PWD"', "--bind", '"$PWD"']
        yield from (["--bind", _quoted(mount)] for mount in mounts)
        yield [_quoted(image)]
    elif image:
        yield [f"--container-image={_quoted(image)}"]
        folders = ",".join(['"$PWD:$PWD"', *map(_quoted, mounts)])
        yield [f"--container-mounts={folders}", '--container-workdir="$PWD"']


def _command_words(job: Submission) -> Iterator[Sequence[str]]:
    script, *args = job.words
    for group in (job.launcher, *job.options, [script], *([each] for each in args)):
        yield [_quoted(word) for word in group]


def _quoted(word: str) -> str:
    """Quote a word for the shell."""
    if _SAFE.fullmatch(word):
        return word
    if not word.replace("\n", "").isprintable():
        return shell_line([word])
    if re.search(r"['$`\\]", word):
        # shellcheck warns about $ and \ in single quotes.
        return '"' + re.sub(r'(["\\$`])', r"\\\1", word) + '"'
    return f"'{word}'"


def _command_lines(groups: Iterable[Sequence[str]]) -> list[str]:
    """Return a command of quoted words, broken into lines between ``groups`` only."""
    first, *others = (" ".join(group) for group in groups)
    lines = [first]
    for text in others:
        if len(lines[-1]) + len(text) > MAX_LINE_WIDTH:
            lines.append(f"    {text}")
        else:
            lines[-1] += f" {text}"
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


# The submission

COMMAND_TIMEOUT = 60.0
"""Seconds. A controller that starts or is overloaded may take this long."""


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print or submit the job.

    Standard output gets only the job's number, or with ``--follow`` the job's output.

    Raises:
        UsageError: the described job is impossible, or Slurm rejects it.

    """
    if line.words and not line.after_dashes:
        program = WorkerProgram(ProgramKind.SCRIPT, line.words[0], line.words[1:])
        warn(misplaced_options(program, by_any_name({**OPTIONS, **ROWS})))
    how = line.read(Submit)

    def ask_slurm(words: Sequence[str], stdin: str = "") -> CommandResult:
        return run_command(words, environ, stdin, COMMAND_TIMEOUT)

    job = describe(line, environ, this_process(called), ask_slurm)
    text = script_of(job)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # File names and arguments may be any bytes.
        raise UsageError(
            f"the script of a job can't have text that is not UTF-8: {text[: error.end].split()[-1]!a}",
            "rename the file, or have the program read what it needs from a file",
        ) from None
    if how.follow and _is_array(job, environ):
        raise UsageError(
            "--follow shows one job, but an array is several",
            "remove --follow; squeue and tail -f show them",
        )
    if job.warning:
        warn([job.warning])
    if how.print:
        if job.env and _others_can_read_output():
            warn(
                [
                    f"other users can read this file, and it contains the values of --env: use {PRIVATE_FILE}"
                ]
            )
        return print_text(text.rstrip("\n"))
    if not find_executable("sbatch", environ.get("PATH", "")):
        raise UsageError(
            "this machine has no Slurm: sbatch is not on PATH",
            "run it on a login node, or add --print to see what would be submitted\n"
            "for LSF, PBS, Flux and Kubernetes, edit a file in configs (see docs/slurm.md)",
        )
    queued = submit(job, text, ask_slurm)
    complain(f"clusterrun: Slurm has queued job {queued.number} ({job.job_name})")
    if how.follow:
        return follow(queued, ask_slurm)
    complain(f"  to see it: {queued.line('squeue -j')}", f"  to end it: {queued.line('scancel')}")
    return print_text(queued.number)


def _others_can_read_output() -> bool:
    try:
        mode = os.fstat(1).st_mode
    except OSError:
        # Standard output is closed.
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o077)


def _is_array(job: Submission, environ: Mapping[str, str]) -> bool:
    """Return whether the job is an array ("-a, --array" of sbatch(1))."""
    has_directive = any(re.search(r"(^|\s)(-a|--ar)", line) for line in job.request.directive)
    return has_directive or bool(environ.get("SBATCH_ARRAY_INX"))


def submit(job: Submission, script: str, ask: SlurmCommand) -> QueuedJob:
    """Submit the script.

    Raises:
        UsageError: Slurm rejects the job.
        MachineError: Slurm has not answered in time, or has accepted the job without printing its number.

    """
    answer = ask(["sbatch", "--parsable"], script)
    if answer.code is None:
        raise MachineError(
            f"it is not known whether the job is queued: {answer.error_text}",
            f"to look for it by its name, run squeue --name {job.job_name}",
        )
    if answer.code != 0:
        raise UsageError(
            f"the job is not queued: {' '.join(answer.error_text.split())}",
            "to see what is requested from Slurm, add --print",
        )
    # "17", or "17;east" in a federation or with -M; a site may print messages first.
    found = re.search(r"(\d+)(?:;(\S+))?\s*$", answer.out)
    if not found:
        printed = " ".join(f"{answer.out} {answer.err}".split())
        raise MachineError(
            f"Slurm accepted the job, but its ID is unknown: {printed or 'nothing printed'}",
            f"to find it by its name, {job.job_name}, run squeue",
        )
    number, cluster = found.groups()
    return QueuedJob(number, (f"--clusters={cluster}",) if cluster else ())
