"""What ``--dry-run`` prints: each value with its origin, each worker with its place."""

from collections.abc import Iterator, Sequence
from shlex import join
from time import localtime, strftime

from clusterrun.domain.plan import NodePlan
from clusterrun.domain.world import World
from clusterrun.job.job import Job
from clusterrun.job.options import OPTIONS
from clusterrun.report.job_values import Value, job_values
from clusterrun.report.tables import aligned
from clusterrun.report.worker_table import remarks_in, worker_table


def dry_run_text(job: Job, plan: NodePlan) -> str:
    """Return the plan for people: aligned, never cut short, without a trailing newline."""
    first, world = plan.workers[0], plan.world
    gpus = f", GPUs by {plan.visible_origin}" if plan.visible_origin else ""
    own = {"MASTER_PORT": "chosen at the start", **first.env}
    variables = ((name, plan.env[name], _origin_of(name, job)) for name in sorted(plan.env))
    sections = (
        ("job", aligned(_job_rows(job, world))),
        (
            f"workers of {plan.host}, node {world.node_rank} of {world.nodes}{gpus}",
            worker_table(plan),
        ),
        ("variables of every worker", aligned(variables)),
        (f"variables of rank {first.rank}", aligned(sorted(own.items()))),
        ("variables that no worker inherits", plan.unset),
        ("remarks", remarks_in(plan)),
        (
            f"command of rank {first.rank}" if first.own_arguments else "command",
            [join(plan.command_of(first))],
        ),
    )
    return "\n\n".join(
        "\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in sections if lines
    )


def _job_rows(job: Job, world: World) -> Iterator[Sequence[str]]:
    for name, value, origin in job_values(job, world):
        if name == "env":
            yield from (
                (name, f"{key}={text}", job.origin(f"env.{key}")) for key, text in job.env.items()
            )
        elif name == "fewest_nodes" and job.last_call is None:
            continue
        elif origin != "default" or not _is_quiet(name):
            yield name, _in_words(name, value, job), origin


def _is_quiet(name: str) -> bool:
    """Return whether a value is left out if it is the default, which it nearly always is."""
    if name in OPTIONS:
        return OPTIONS[name].option.quiet
    # What is no option follows from a cluster, a scheduler or a terminal.
    return name not in {"script", "module", "no_python", "run_path", "args", "token"}


def _in_words(name: str, value: Value, job: Job) -> str:
    match value:
        case None if name == "master_port":
            return "the first free" if job.port_candidates else "chosen at the start"
        case None:
            return "none"
        case float() if name == "ends_at":
            return strftime("%Y-%m-%d %H:%M:%S", localtime(value))
        case bool():
            return "yes" if value else "no"
        case list():
            return join(map(str, value)) or "none"
        case {"rank": rank, "size": size, "local_rank": local_rank, "local_size": local_size}:
            return f"{rank} of {size}, on this node {local_rank} of {local_size}"
        case _:
            return str(value)


def _origin_of(variable: str, job: Job) -> str:
    if variable in job.env:
        return job.origin(f"env.{variable}")
    is_chosen = job.workers.devices and variable.endswith(("VISIBLE_DEVICES", "AFFINITY_MASK"))
    return job.origin("devices") if is_chosen else "clusterrun"
