"""Running a job whose nodes have joined: its workers, its attempts, its event log, its end."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.agent.signal_inbox import SignalInbox
from clusterrun.agent.state import Rules
from clusterrun.agent.supervisor import Supervisor
from clusterrun.domain.job import JobSpec
from clusterrun.domain.outcome import Outcome
from clusterrun.errors import LauncherError
from clusterrun.run.attempts import JobAttempts
from clusterrun.run.job_machine import LocalJob
from clusterrun.workers.relay.log_layout import LogLayout
from clusterrun.workers.relay.routes import Routes
from clusterrun.workers.worker_group import WorkerGroup

if TYPE_CHECKING:
    # A job imports what it needs of these.
    from clusterrun.agent.event_log import EventLog
    from clusterrun.rendezvous.peers import Peers
    from clusterrun.rendezvous.single_node import SingleNode


def supervise(
    local: LocalJob, nodes: SingleNode | Peers, workers: WorkerGroup, inbox: SignalInbox
) -> Outcome:
    """Run all attempts; return how the job ended, once that is recorded."""
    rules = Rules(grace=local.job.shutdown_timeout.value, foreground=workers.foreground)
    event_log = _event_log(local.job, workers)
    attempts = JobAttempts(local, nodes, workers, event_log)
    supervisor = Supervisor(attempts, workers, nodes, inbox, time)
    if event_log is None:
        return supervisor.run(rules)
    try:
        outcome = supervisor.run(rules)
    except LauncherError as error:
        event_log.breaks_off(error)
        raise
    event_log.ends(outcome)
    return outcome


def routes_of(job: JobSpec, run_id: str) -> Routes:
    """Return where the output of the workers goes."""
    if job.log_dir.value is None:
        return Routes(job, None)
    folder = Path(job.log_dir.value).absolute()
    torchrun_folder = f"{run_id}_{os.urandom(4).hex()}" if job.as_torchrun.value else ""
    return Routes(job, LogLayout(folder, run_id, job.workerlog.value, torchrun_folder))


def _event_log(job: JobSpec, workers: WorkerGroup) -> EventLog | None:
    if job.events.value is None:
        return None
    from clusterrun.agent.event_log import EventLog

    path = str(Path(job.events.value).absolute())

    def write(node_rank: int, line: str) -> None:
        workers.record(Path(path.replace("%n", str(node_rank))), line)

    return EventLog(write, time.monotonic, time.time() - time.monotonic())
