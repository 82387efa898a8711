"""The job that the sources describe: options as they are set, and what follows from several of them."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from clusterrun.domain.bounds import as_run_id
from clusterrun.domain.facts import Fact
from clusterrun.domain.job import Given, JobSpec, Program
from clusterrun.job.nested_launches import STEP_VARIABLE, slurm_step
from clusterrun.job.options import OPTIONS
from clusterrun.job.program import find_interpreter
from clusterrun.job.sources import REPORT_VARIABLE, Layer, find, read_text, value_of
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.variables import Variables
from clusterrun.sources.hosts.over_ssh import is_over_ssh
from clusterrun.sources.meeting_point import Meeting, settle_meeting
from clusterrun.sources.other_launchers.torchrun_options import called_as_torchrun, default_prefix
from clusterrun.sources.output_options import find_coloured, find_kept_attempts, find_log_dir
from clusterrun.sources.schedulers.suspension import (
    SchedulerFacts,
    default_run_id,
    scheduler_facts,
)
from clusterrun.sources.spare_nodes import elastic_minimum, fewest_nodes, working_nodes
from clusterrun.sources.token import find_token


def job_spec(
    sources: Sequence[Layer],
    program: Fact[Program],
    env: Mapping[str, Fact[str]],
    inputs: Inputs,
    place: Place,
) -> JobSpec:
    """Return the job; its environment is ``env``, its nodes and workers follow from ``place``."""
    called = inputs.process.called
    interpreter = value_of("python", sources, Fact(inputs.process.python, "default"))
    prefix = value_of("log_line_prefix_template", sources, default_prefix(called, sources))
    scheduler = scheduler_facts(sources, inputs, place)
    set_run_id = find("run_id", sources) or _known_run_id(place, sources, scheduler)
    run_id = set_run_id or Fact(inputs.process.run_id, "default")
    meeting = settle_meeting(sources, inputs.variables, place, inputs.command_line)
    log_dir, nnodes = find_log_dir(sources), working_nodes(sources, place)
    derived = {
        **_shared_fields(place),
        **_shared_fields(scheduler),
        **_shared_fields(meeting),
        "nnodes": nnodes,
        "fewest_nodes": _fewest_nodes(sources, nnodes),
        "token": find_token(sources, inputs.variables, _default_token(place, inputs)),
        "run_id": run_id,
        # Nodes whose run id is node 0's do not know it yet: it is a new one.
        "kept_attempts": find_kept_attempts(
            log_dir, run_id.value, is_torchrun=called_as_torchrun(called).value
        )
        if set_run_id
        else Fact(0, "default"),
        "python": _interpreter(interpreter, sources, search_path(env, inputs.variables)),
        "env": {**env, **_outer_step(run_id.value, inputs.variables)},
        "log_dir": log_dir,
        "coloured": find_coloured(inputs.process, inputs.variables, place.cluster, log_dir),
        "is_merged": _by_ssh(inputs.variables),
        "log_line_prefix_template": prefix,
        "program": program,
        "as_torchrun": called_as_torchrun(called),
        "given": Given(
            run_id=set_run_id is not None,
            python=find("python", sources) is not None,
            signals_to_handle=find("signals_to_handle", sources) is not None,
            at_endpoint=inputs.at_endpoint,
            exports=_exports(sources, place, meeting),
            no_end=scheduler.no_end,
        ),
    }
    return JobSpec(**_facts_as_set(sources, place, inputs) | derived)


def _shared_fields(known: Struct) -> dict[str, Any]:
    """Return the values of fields that the job has under the same names."""
    fields = JobSpec.__struct_fields__
    return {name: value for name, value in asdict(known).items() if name in fields}


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


def _facts_as_set(sources: Sequence[Layer], place: Place, inputs: Inputs) -> dict[str, Any]:
    fields = JobSpec.__struct_fields__
    facts: dict[str, Any] = {name: value_of(name, sources) for name in OPTIONS if name in fields}
    facts["workerlog"] = Fact(value=False, origin="default")
    if place.cluster.value == "paddle":
        facts |= _paddle_defaults(sources, inputs.variables, place.cluster)
    return facts


def _paddle_defaults(
    sources: Sequence[Layer], variables: Variables, cluster: Fact[str]
) -> dict[str, Fact[object]]:
    """Return values that differ from those of other jobs, by the names of their options."""
    own: dict[str, Fact[object]] = {}
    port = variables.number("PADDLE_PORT", "PADDLE_START_PORT")
    if port and find("base_port", sources) is None:
        own["base_port"] = Fact(port.value, port.origin)
    if find("log_dir", sources):
        own["workerlog"] = Fact(value=True, origin=cluster.origin)
    return own


def _exports(sources: Sequence[Layer], place: Place, meeting: Meeting) -> tuple[str, ...]:
    """Return the variables of a script that say that there are several nodes, if no option does."""
    if place.cluster.value != "exports" or find("nnodes", sources) or place.hosts.value:
        return ()
    names = (place.nnodes.origin, place.node_rank.origin, meeting.master_addr.origin)
    return tuple(dict.fromkeys(name for name in names if name.isupper()))


def _fewest_nodes(sources: Sequence[Layer], nnodes: Fact[int]) -> Fact[int]:
    """Return MIN of ``--nnodes MIN:MAX``, at most the number of nodes that the job has."""
    fewest = fewest_nodes(sources) or nnodes
    return elastic_minimum(sources, fewest, nnodes) if fewest.value < nnodes.value else nnodes


def _known_run_id(
    place: Place, sources: Sequence[Layer], scheduler: SchedulerFacts
) -> Fact[str] | None:
    known = place.run_id or default_run_id(scheduler.scheduler, sources)
    # A cluster's name for the job may have characters that no folder's name can have.
    return Fact(as_run_id(known.value), known.origin) if known else None


def _default_token(place: Place, inputs: Inputs) -> Fact[str] | None:
    # Nodes that the cluster has not started do not know its secret.
    secret = place.secret
    if secret is None or place.agents == 1:
        return None
    return Fact(f"{secret.value} of user {inputs.process.user_id}", secret.origin)


def _outer_step(run_id: str, variables: Mapping[str, str]) -> dict[str, Fact[str]]:
    """Return the variable by which a launch inside a worker knows our Slurm step, unless the run id is it."""
    step = slurm_step(variables)
    return {STEP_VARIABLE: Fact(step, "Slurm")} if step and step != run_id else {}
