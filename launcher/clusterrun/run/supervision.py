"""Running a job whose nodes have joined: its workers, its attempts, its event log, its end."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.agent.signal_inbox import SignalInbox
from clusterrun.agent.supervisor import Supervisor
from clusterrun.domain.world import World
from clusterrun.errors import LauncherError
from clusterrun.job.job import Job
from clusterrun.policy.events import SignalReceived
from clusterrun.policy.node import Rules
from clusterrun.policy.outcome import Outcome
from clusterrun.run.attempts import JobAttempts
from clusterrun.run.job_machine import LocalJob
from clusterrun.run.job_requests import JobRequests
from clusterrun.workers.relay.log_layout import LogLayout
from clusterrun.workers.relay.relay_client import RelayClient
from clusterrun.workers.relay.routes import Routes
from clusterrun.workers.worker_group import WorkerGroup

if TYPE_CHECKING:
    # A job imports what it needs of these.
    from clusterrun.agent.event_log import EventLog
    from clusterrun.rendezvous.peers import Peers
    from clusterrun.rendezvous.single_node import SingleNode


def supervise(  # noqa: PLR0913 - what the launch has prepared
    local: LocalJob,
    nodes: SingleNode | Peers,
    workers: WorkerGroup,
    relay: RelayClient,
    inbox: SignalInbox,
    *,
    early: Sequence[SignalReceived],
    requests: JobRequests,
) -> Outcome:
    """Run all attempts; return how the job ended, once that is recorded.

    ``early`` are signals that came while nodes joined, ``requests`` come from outside.
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
    first = nodes.first_world.attempt
    event_log = _event_log(local.job, relay)
    attempts = JobAttempts(local, nodes, workers, event_log, requests.view)
    looks, sources = requests.looks, requests.sources
    supervisor = Supervisor(attempts, workers, nodes, inbox, time, looks=looks, requests=sources)
    if event_log is None:
        return supervisor.run(rules, early, first)
    try:
        outcome = supervisor.run(rules, early, first)
    except LauncherError as error:
        event_log.breaks_off(error)
        raise
    event_log.ends(outcome)
    return outcome


def routes_of(job: Job, world: World) -> Routes:
    """Return where the output of the workers goes."""
    if job.files.log_dir is None:
        return Routes(job, None)
    folder = Path(job.files.log_dir).absolute()
    torchrun_folder = f"{world.run_id}_{os.urandom(4).hex()}" if job.as_torchrun else ""
    layout = LogLayout(folder, world.run_id, job.workerlog, torchrun_folder, world.kept_attempts)
    return Routes(job, layout)


def _event_log(job: Job, relay: RelayClient) -> EventLog | None:
    if job.files.events is None:
        return None
    from clusterrun.agent.event_log import EventLog

    path = str(Path(job.files.events).absolute())

    def write(node_rank: int, line: str) -> None:
        relay.record(Path(path.replace("%n", str(node_rank))), line)

    return EventLog(write, time.monotonic, time.time() - time.monotonic())
