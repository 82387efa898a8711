"""The job that the sources describe: options as they are set, and what follows from several of them."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from clusterrun.domain.bounds import as_run_id
from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec, Program
from clusterrun.sources.clusters.cluster import Inputs
from clusterrun.sources.clusters.variables import Variables
from clusterrun.sources.colours import find_coloured
from clusterrun.sources.log_options import find_log_dir, find_prefix
from clusterrun.sources.meeting_point import settle_meeting
from clusterrun.sources.options.option import Option
from clusterrun.sources.options.rows.joining import RUN_ID
from clusterrun.sources.options.rows.logs import LOG_DIR, WORKERLOG
from clusterrun.sources.options.rows.meeting import BASE_PORT
from clusterrun.sources.options.rows.program import ENV, PYTHON
from clusterrun.sources.options.table import FEWEST_NODES, OPTIONS
from clusterrun.sources.other_launchers.nested_launches import STEP_VARIABLE, slurm_step
from clusterrun.sources.other_launchers.torchrun_defaults import called_as_torchrun
from clusterrun.sources.programs.executables import find_interpreter
from clusterrun.sources.settings import Settings, find, value_of
from clusterrun.sources.token import find_token
from clusterrun.sources.world_shape import Shape


def job_spec(
    sources: Sequence[Settings],
    program: Fact[Program],
    env: Mapping[str, Fact[str]],
    inputs: Inputs,
    shape: Shape,
) -> JobSpec:
    """Return the job; its environment is ``env``, its nodes and workers are those of ``shape``."""
    called = inputs.process.called
    interpreter = value_of(PYTHON, sources, _default_python(inputs))
    meeting = settle_meeting(sources, inputs.variables, shape, inputs.command_line)
    run_id = value_of(RUN_ID, sources, _default_run_id(shape, inputs))
    log_dir = find_log_dir(sources)
    return JobSpec(
        **_facts_as_set(sources, shape, inputs),
        nnodes=shape.nnodes,
        fewest_nodes=_fewest_nodes(sources, shape),
        node_rank=shape.node_rank,
        nproc_per_node=shape.nproc_per_node,
        tasks=shape.tasks,
        hosts=shape.hosts,
        cluster=shape.cluster,
        numa_node=shape.numa_node,
        unclear=shape.unclear,
        master_addr=meeting.master_addr,
        master_port=meeting.master_port,
        port_candidates=meeting.port_candidates,
        rdzv_endpoint=meeting.rdzv_endpoint,
        token=find_token(sources, inputs.variables, _default_token(shape, inputs)),
        run_id=run_id,
        python=find_interpreter(interpreter, search_path(env, inputs.variables)),
        env={**env, **_outer_step(run_id.value, inputs.variables)},
        log_dir=log_dir,
        coloured=find_coloured(inputs.process, inputs.variables, shape.cluster, log_dir),
        log_line_prefix_template=find_prefix(sources, inputs.variables, called),
        program=program,
        as_torchrun=called_as_torchrun(called),
    )


def is_taken_as_set(option: Option[object]) -> bool:
    """Return whether the job has a field of the option's name that holds its value as it is set."""
    return option.name in JobSpec.__struct_fields__ and not option.is_derived


def environment(sources: Sequence[Settings]) -> dict[str, Fact[str]]:
    """Return the variables that the sources set; the strongest source of each name wins."""
    texts = [text for source in reversed(sources) for text in source.get(ENV.name, ())]
    return {
        name: Fact(value, text.origin)
        for text in texts
        for name, value in ENV.read(text).value.items()
    }


def search_path(env: Mapping[str, Fact[str]], variables: Mapping[str, str]) -> str:
    """Return the PATH of the workers."""
    return env["PATH"].value if "PATH" in env else variables.get("PATH", os.defpath)


def _facts_as_set(sources: Sequence[Settings], shape: Shape, inputs: Inputs) -> dict[str, Any]:
    facts = {
        option.name: value_of(option, sources) for option in OPTIONS if is_taken_as_set(option)
    }
    if shape.cluster.value == "paddle":
        facts |= _paddle_defaults(sources, inputs.variables, shape.cluster)
    return facts


def _paddle_defaults(
    sources: Sequence[Settings], variables: Variables, cluster: Fact[str]
) -> dict[str, Fact[object]]:
    """Return values that differ from those of other jobs, by the names of their options."""
    own: dict[str, Fact[object]] = {}
    port = variables.number("PADDLE_PORT", "PADDLE_START_PORT")
    if port and find(BASE_PORT, sources) is None:
        own[BASE_PORT.name] = Fact(port.value, port.origin)
    if find(LOG_DIR, sources) and find(WORKERLOG, sources) is None:
        own[WORKERLOG.name] = Fact(value=True, origin=cluster.origin)
    return own


def _fewest_nodes(sources: Sequence[Settings], shape: Shape) -> Fact[int]:
    """Return MIN of ``--nnodes MIN:MAX``, at most the number of nodes that the job has."""
    fewest = value_of(FEWEST_NODES, sources, shape.nnodes)
    return fewest if fewest.value <= shape.nnodes.value else shape.nnodes


def _default_run_id(shape: Shape, inputs: Inputs) -> Fact[str]:
    if shape.run_id is None:
        return Fact(inputs.process.run_id, "default")
    # A cluster's name for the job may have characters that no folder's name can have.
    return Fact(as_run_id(shape.run_id.value), shape.run_id.origin)


def _default_token(shape: Shape, inputs: Inputs) -> Fact[str] | None:
    # Nodes that the cluster has not started do not know its secret.
    secret = shape.place.secret if shape.place else None
    if secret is None or shape.agents == 1:
        return None
    return Fact(f"{secret.value} of user {inputs.process.user_id}", secret.origin)


def _outer_step(run_id: str, variables: Mapping[str, str]) -> dict[str, Fact[str]]:
    """Return the variable by which a launch inside a worker knows our Slurm step, unless the run id is it."""
    step = slurm_step(variables)
    return {STEP_VARIABLE: Fact(step, "Slurm")} if step and step != run_id else {}


def _default_python(inputs: Inputs) -> Fact[str]:
    # torchrun's variable; it replaces the default only.
    if inputs.variables.get("PYTHON_EXEC"):
        return Fact(inputs.variables["PYTHON_EXEC"], "PYTHON_EXEC")
    return Fact(inputs.process.python, "default")
