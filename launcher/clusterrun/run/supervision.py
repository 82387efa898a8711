"""Running a job whose nodes have joined: its workers, its attempts, its event log, its end."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.domain.world import World
from clusterrun.errors import LauncherError
from clusterrun.job.job import Job
from clusterrun.job.output import shows_colours
from clusterrun.loop import Loop
from clusterrun.planning.variables import has_output_to_itself
from clusterrun.policy.events import Event
from clusterrun.policy.node import Rules
from clusterrun.policy.outcome import Outcome
from clusterrun.run.agent import Agent
from clusterrun.run.attempts import JobAttempts
from clusterrun.run.job_machine import LocalJob
from clusterrun.run.job_requests import JobRequests
from clusterrun.run.job_view import JobView
from clusterrun.workers.node_workers import NodeWorkers
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.routes import LogLayout, Looks, Routes

if TYPE_CHECKING:
    # A job imports what it needs of these.
    from clusterrun.network.membership import Membership
    from clusterrun.run.event_log import EventLog
    from clusterrun.run.one_node import OneNode


def supervise(  # noqa: PLR0913 - what the launch has prepared
    local: LocalJob,
    nodes: OneNode | Membership,
    workers: NodeWorkers,
    relay: RelayClient,
    *,
    loop: Loop[Event],
    world: World,
    view: JobView,
    requests: JobRequests,
) -> Outcome:
    """Run all attempts, from the first ``world`` of this node on.

    Return how the job ended, once that is recorded.
    """
    job = local.job
    rules = Rules(
        job.failing.shutdown_timeout,
        workers.foreground,
        job.suspending.suspend_signal,
        ends_late_exits=not job.is_debugged,
        finds_hangs=job.watched_for > 0,
        kills_if_cut_off=job.outlives_nodes,
    )
    event_log = _event_log(local.job, relay)
    attempts = JobAttempts(local, workers, relay, event_log, view)
    agent = Agent(attempts, workers, nodes, requests, loop=loop, wall_clock=time.time)
    if event_log is None:
        return agent.run(rules, world)
    try:
        outcome = agent.run(rules, world)
    except LauncherError as error:
        event_log.breaks_off(error)
        raise
    event_log.ends(outcome)
    return outcome


def routes_of(local: LocalJob, world: World) -> Routes:
    """Return where the output of the workers goes, and how it looks."""
    job = local.job
    has_prefix = bool(job.output.log_line_prefix_template)
    looks = Looks(
        raw=not has_prefix and has_output_to_itself(job, local.workers),
        colour=shows_colours(local.variables),
        # mpirun gives each task a terminal, and merges what they print.
        merged=job.workers.cluster == "openmpi",
    )
    if job.files.log_dir is None:
        return Routes(job, None, looks)
    folder = Path(job.files.log_dir).absolute()
    torchrun_folder = f"{world.run_id}_{os.urandom(4).hex()}" if job.as_torchrun else ""
    layout = LogLayout(folder, world.run_id, job.workerlog, torchrun_folder, world.kept_attempts)
    return Routes(job, layout, looks)


def _event_log(job: Job, relay: RelayClient) -> EventLog | None:
    if job.files.events is None:
        return None
    from clusterrun.run.event_log import EventLog

    path = str(Path(job.files.events).absolute())

    def write(node_rank: int, line: str) -> None:
        relay.record(Path(path.replace("%n", str(node_rank))), line)

    return EventLog(write, time.monotonic, time.time() - time.monotonic())
