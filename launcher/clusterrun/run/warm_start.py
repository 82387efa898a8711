"""A job whose fork server is warm: one that an earlier job has left, or one that this job leaves."""

import sys
from pathlib import Path

from clusterrun.planning.preparation import Preparation
from clusterrun.run.fork_server_start import server_command, start_fork_server
from clusterrun.run.job_machine import LocalJob
from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.relay.routes import check_log_folder
from clusterrun.workers.warm import socket_of, warm_or_new


def warm_fork_server(
    local: LocalJob, preparation: Preparation | None, owned_socket: str
) -> ForkServer:
    """Return a warm fork server, or a new one, which is to stay where that is possible.

    Args:
        local: the job.
        preparation: what its fork server is to prepare; None: its workers are spawned.
        owned_socket: where a warm server listens that the caller ends itself; "": it is for all
            launches of the program.

    Raises:
        LauncherError: the interpreter can't be executed.

    """
    job = local.job
    path = Path(owned_socket) if owned_socket else None
    found = None
    if preparation is None:
        remark = "the workers are spawned, so that nothing stays"
    elif job.workers.cluster != "none" and path is None:
        cluster = job.workers.cluster
        remark = f"nothing stays after a job of {cluster}, which ends with all of its processes"
    elif (path := path or socket_of(local.variables, preparation)) is None:
        remark = "there is no folder for its socket that is yours alone"
    else:
        check_log_folder(job.fact("log_dir"))
        command = server_command(local.resolved, local.variables)
        seconds, is_owned = job.starting.keep_warm, bool(owned_socket)
        found, remark = warm_or_new(command, preparation, path, seconds, is_owned=is_owned)
    is_as_asked = found is not None and (found.is_warm or found.stay is not None)
    if remark and (local.resolved.verbose or not (is_as_asked or owned_socket)):
        about = "" if found is not None else f"{job.origin('keep_warm')}: "
        sys.stderr.write(f"clusterrun: {about}{remark}\n")
    return found or ForkServer.started(start_fork_server(local.resolved, local.variables))
