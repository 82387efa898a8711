"""From the command line, the variables and the job file to what is submitted."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.domain.submissions.pods import PodRequest
from clusterrun.domain.submissions.submission import ContainerRuntime, Gpus, NodeCommand, Submission
from clusterrun.errors import UsageError
from clusterrun.job.declaring import Fact
from clusterrun.job.job_file import ALL_SCHEDULERS
from clusterrun.job.place import asked_nodes
from clusterrun.job.program import find_program
from clusterrun.job.resolve import read_sources
from clusterrun.job.sources import CommandLine, Layer, find, read_text, value_of
from clusterrun.sources.submissions.checks import check_groups, check_request, requeue_warning
from clusterrun.sources.submissions.detection import find_scheduler
from clusterrun.sources.submissions.node_command import (
    check_options,
    node_command,
    path_of_launcher,
)
from clusterrun.sources.submissions.options import ROWS, asked_for
from clusterrun.sources.submissions.sections import read_groups, read_sections, shape_of

SCHEMES = ("docker://", "oras://", "library://", "shub://", "docker-daemon:", "oci:")
"""How images begin that apptainer builds itself (apptainer-exec(1))."""


class Described(Struct, frozen=True):
    """What is submitted, and what this call of clusterrun is to do with it."""

    scheduler: Fact[str]
    submission: Submission
    is_printed: bool
    waits: bool
    follows: bool
    is_quiet: bool
    save: Fact[str]
    """The file to write; "": none."""
    warning: str
    """What may not be meant; "": nothing."""


def describe_submission(
    line: CommandLine, environ: Mapping[str, str], interpreter: str
) -> Described:
    """Return what the command line, ``environ`` and the job file describe.

    ``interpreter`` is the path of the Python that runs clusterrun.

    Raises:
        UsageError: something is impossible; nothing has been submitted or written.

    """
    given, words = read_sources(line, environ)
    sections = read_sections(value_of("config", given))
    flags = line.options
    shared = sections.get(ALL_SCHEDULERS, {})
    path = environ.get("PATH", "")
    scheduler = find_scheduler((flags, shared), path)
    asked = (flags, sections.get(scheduler.value, {}), shared)
    job = (*given[:-1], shape_of(sections, scheduler.value), given[-1])
    check_options(job)
    in_image = bool(asked_for("image", asked).value)
    if not in_image or not words.value:
        program = find_program(words, job, path)
        if program.value.is_standard_input:
            raise UsageError(
                "a script on standard input (-) cannot wait in a queue",
                "save it to a file, and give the file",
            )
    # The set-up may activate an environment with another clusterrun.
    is_on_path = in_image or any("setup" in each for each in asked)
    started_by = ("clusterrun",) if is_on_path else path_of_launcher(interpreter)
    return Described(
        scheduler,
        _with_groups(
            read_groups(value_of("config", given)) if scheduler.value == "slurm" else (),
            asked,
            job,
            partial(
                _submission,
                command=node_command(job, words.value, started_by),
                named_by=words.origin,
            ),
        ),
        is_printed=asked_for("print", asked).value,
        waits=asked_for("wait", asked).value,
        follows=asked_for("follow", asked).value,
        is_quiet=asked_for("quiet", asked).value,
        save=asked_for("save", asked),
        warning=requeue_warning(scheduler.value, asked, job),
    )


def _with_groups(
    groups: Sequence[Layer],
    asked: Sequence[Layer],
    job: Sequence[Layer],
    describe: Callable[[Sequence[Layer], Sequence[Layer]], Submission],
) -> Submission:
    """Return the submission of a job whose ``groups`` of nodes are described one by one."""
    if not groups:
        return describe(asked, job)
    check_groups(asked, job)
    parts = tuple(
        describe((asked[0], group, *asked[1:]), (*job[:-2], group, *job[-2:])) for group in groups
    )
    nodes = Fact(sum(part.nodes.value for part in parts), parts[0].nodes.origin)
    return replace(
        parts[0],
        nodes=nodes,
        fewest_nodes=nodes,
        working_nodes=nodes.value,
        outlives_nodes=_outlives_nodes(job, nodes.value, nodes.value),
        groups=parts,
    )


def _submission(
    asked: Sequence[Layer], job: Sequence[Layer], command: NodeCommand, named_by: str
) -> Submission:
    gpus = _gpus(asked, job)
    check_request(asked, job, gpus)
    nodes = asked_nodes(job)[0] or Fact(1, "default")
    nnodes = value_of("nnodes", job)
    fewest = Fact(nnodes.value.fewest, nnodes.origin)
    is_elastic = fewest.value != nnodes.value.most
    as_set: dict[str, Any] = {name: asked_for(name, asked) for name in AS_SET}
    return Submission(
        command=command,
        job_name=asked_for("job_name", asked, Fact(_stem(command, job), named_by)),
        nodes=nodes,
        fewest_nodes=fewest if is_elastic else nodes,
        working_nodes=nnodes.value.most,
        outlives_nodes=_outlives_nodes(job, nodes.value, fewest.value),
        workers_per_node=_workers(job),
        gpus_per_node=gpus,
        requeue=value_of("requeue", job),
        container=_container(asked),
        setup=_all("setup", asked),
        directive=_all("directive", asked),
        pods=_pods(asked, job),
        **as_set,
    )


def _pods(asked: Sequence[Layer], job: Sequence[Layer]) -> PodRequest:
    fields = PodRequest.__struct_fields__
    as_set: dict[str, Any] = {name: asked_for(name, asked) for name in ROWS if name in fields}
    # To reach the agreed step and save, then for workers that do not stop.
    grace = value_of("suspend_grace", job).value + value_of("shutdown_timeout", job).value
    return PodRequest(grace=grace + SECONDS_TO_REPORT, token=secrets.token_hex(32), **as_set)


SECONDS_TO_REPORT = 5.0
"""For the verdict and the report, after all workers have ended."""

AS_SET = (
    *("cpus_per_gpu", "memory_per_gpu", "time", "partition", "account", "qos"),
    *("constraint", "exclusive", "array", "dependency", "signal", "output"),
    *("error", "image", "mounts", "modules"),
)
"""Options whose value is that of the field of the same name."""


def _container(asked: Sequence[Layer]) -> Fact[ContainerRuntime]:
    given = asked_for("container", asked)
    if given.value is not None:
        return Fact(given.value, given.origin)
    image = asked_for("image", asked)
    is_apptainer = image.value.endswith(".sif") or image.value.startswith(SCHEMES)
    runtime = ContainerRuntime.APPTAINER if is_apptainer else ContainerRuntime.PYXIS
    return Fact(runtime, image.origin)


def _stem(command: NodeCommand, job: Sequence[Layer]) -> str:
    """Return a name for the job: ``train`` for train.py, ``pkg.train`` for a module."""
    script = command.words[0]
    name = script if value_of("module", job).value else PurePath(script).stem
    plain = "".join(each if each.isalnum() or each in "._-" else "-" for each in name)
    return plain.strip("-.") or "clusterrun"


def _workers(job: Sequence[Layer]) -> int | None:
    workers = value_of("nproc_per_node", job).value
    return workers if isinstance(workers, int) else None


def _gpus(asked: Sequence[Layer], job: Sequence[Layer]) -> Fact[Gpus | None]:
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
    if asked_for("exclusive", asked).value:
        return Fact(None, asked_for("exclusive", asked).origin)
    raise UsageError(
        "how many GPUs has each node of the job?",
        "type --gpus-per-node N, 0 for none, or --exclusive for whole nodes",
    )


def _outlives_nodes(job: Sequence[Layer], nodes: int, fewest: int) -> bool:
    if nodes == 1:
        return False
    spares, rejoin = value_of("spares", job).value, value_of("rejoin_timeout", job).value
    return fewest < nodes or spares > 0 or rejoin > 0


def _all(name: str, asked: Sequence[Layer]) -> tuple[Fact[str], ...]:
    """Return the lines of all sources, the weakest first: a flag adds to the job file."""
    return tuple(
        Fact(read_text(ROWS[name], text), text.origin)
        for source in reversed(asked)
        for text in source.get(name, ())
    )
