"""The job that the sources describe: options as they are set, and what follows from several of them."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import Given, JobSpec, Program
from clusterrun.job.clusters.found import Launch, Variables
from clusterrun.job.nested_launches import STEP_VARIABLE, slurm_step
from clusterrun.job.options import OPTIONS
from clusterrun.job.place import Shape, is_over_ssh, settle_meeting, working_nodes
from clusterrun.job.program import find_interpreter
from clusterrun.job.scheduler import (
    default_run_id,
    scheduler_facts,
)
from clusterrun.job.sources import REPORT_VARIABLE, Layer, find, layer_of, read_text, value_of
from clusterrun.job.token import find_token
from clusterrun.job.torchrun import called_as_torchrun, default_prefix
from clusterrun.sources.output_options import find_coloured, find_kept_attempts, find_log_dir

NOT_SET: Fact[Any] = Fact(None, "default")


def job_spec(  # noqa: PLR0913 - a job is made of all that is known
    shape: Shape,
    program: Fact[Program],
    env: Mapping[str, Fact[str]],
    variables: Variables,
    launch: Launch,
    *,
    at_endpoint: bool,
) -> JobSpec:
    """Return the job of this shape; its environment is ``env``."""
    called, found, layers = launch.process.called, shape.found, shape.layers
    interpreter = value_of("python", layers, Fact(launch.process.python, "default"))
    rank = found.tasks.value.rank if found.tasks else value_of("node_rank", layers).value
    scheduler = scheduler_facts(layers, variables, launch.process, found.cluster, rank)
    set_run_id = find("run_id", layers) or default_run_id(scheduler.scheduler, layers)
    run_id = set_run_id or Fact(launch.process.run_id, "default")
    meeting, ports = settle_meeting(shape, variables, launch.line)
    log_dir, nnodes = find_log_dir(layers), working_nodes(shape)
    paddle = _paddle_defaults(variables, found.cluster)
    layers = (
        meeting,
        nnodes,
        layer_of(cluster=found.cluster, log_dir=log_dir, run_id=run_id),
        *layers,
        paddle,
    )
    nodes = value_of("nnodes", layers)
    derived: dict[str, Any] = {
        "nnodes": Fact(nodes.value.most, nodes.origin),
        "fewest_nodes": Fact(nodes.value.fewest, nodes.origin),
        "tasks": found.tasks or NOT_SET,
        "numa_node": found.numa_node or NOT_SET,
        "unclear": found.unclear or Fact("", "default"),
        "port_candidates": ports,
        "scheduler": scheduler.scheduler,
        "ends_at": scheduler.ends_at,
        "resumed": scheduler.resumed,
        "token": find_token(launch.line.options, layers, variables, _default_token(shape, launch)),
        "log_line_prefix_template": value_of(
            "log_line_prefix_template", layers, default_prefix(called, layers)
        ),
        # Nodes whose run id is node 0's do not know it yet: it is a new one.
        "kept_attempts": find_kept_attempts(
            log_dir, run_id.value, is_torchrun=called_as_torchrun(called).value
        )
        if set_run_id
        else Fact(0, "default"),
        "python": _interpreter(interpreter, layers, search_path(env, variables)),
        "env": {**env, **_outer_step(run_id.value, variables)},
        "coloured": find_coloured(launch.process, variables, found.cluster, log_dir),
        "is_merged": _by_ssh(variables),
        "workerlog": Fact(value=True, origin=found.cluster.origin)
        if found.cluster.value == "paddle" and find("log_dir", shape.layers)
        else Fact(value=False, origin="default"),
        "program": program,
        "as_torchrun": called_as_torchrun(called),
        "given": Given(
            run_id=set_run_id is not None,
            python=find("python", layers) is not None,
            signals_to_handle=find("signals_to_handle", layers) is not None,
            at_endpoint=at_endpoint,
            exports=_exports(shape, layers),
            no_end=scheduler.no_end,
        ),
    }
    fields = JobSpec.__struct_fields__
    facts: dict[str, Any] = {name: value_of(name, layers) for name in OPTIONS if name in fields}
    return JobSpec(**facts | derived)


def environment(sources: Sequence[Layer]) -> dict[str, Fact[str]]:
    """Return the variables that the sources set; the strongest source of each name wins."""
    texts = [text for source in reversed(sources) for text in source.get("env", ())]
    return {
        name: Fact(value, text.origin)
        for text in texts
        for name, value in [read_text(OPTIONS["env"], text)]
    }


def _interpreter(python: Fact[str], sources: Sequence[Layer], path: str) -> Fact[str]:
    # What is on the hosts, ssh will show; here it may be absent.
    return python if is_over_ssh(sources).value else find_interpreter(python, path)


def _by_ssh(variables: Mapping[str, str]) -> Fact[bool]:
    is_set = bool(variables.get(REPORT_VARIABLE))
    return Fact(is_set, REPORT_VARIABLE if is_set else "default")


def search_path(env: Mapping[str, Fact[str]], variables: Mapping[str, str]) -> str:
    """Return the PATH of the workers."""
    return env["PATH"].value if "PATH" in env else variables.get("PATH", os.defpath)


def _paddle_defaults(variables: Variables, cluster: Fact[str]) -> Layer:
    is_paddle = cluster.value == "paddle"
    port = variables.number("PADDLE_PORT", "PADDLE_START_PORT") if is_paddle else None
    return layer_of(base_port=port)


def _exports(shape: Shape, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Return the variables of a script that say that there are several nodes, if no option does."""
    is_set = find("nnodes", shape.layers) or find("hosts", shape.layers)
    if shape.found.cluster.value != "exports" or is_set:
        return ()
    origins = [value_of(name, layers).origin for name in ("nnodes", "node_rank", "master_addr")]
    return tuple(dict.fromkeys(name for name in origins if name.isupper()))


def _default_token(shape: Shape, launch: Launch) -> Fact[str] | None:
    # Nodes that the cluster has not started do not know its secret.
    secret = shape.found.secret
    if secret is None or shape.agents == 1:
        return None
    return Fact(f"{secret.value} of user {launch.process.user_id}", secret.origin)


def _outer_step(run_id: str, variables: Mapping[str, str]) -> dict[str, Fact[str]]:
    """Return the variable by which a launch inside a worker knows our Slurm step, unless the run id is it."""
    step = slurm_step(variables)
    return {STEP_VARIABLE: Fact(step, "Slurm")} if step and step != run_id else {}
