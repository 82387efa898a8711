"""The fork server of a job: started first of all, as its interpreter takes time to start; or warm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.job.job import Job
from clusterrun.job.resolve import Resolved
from clusterrun.planning.variables import environment_before
from clusterrun.workers.fork_server_process import ServerCommand, ServerProcess
from clusterrun.workers.relay.routes import check_log_folder

if TYPE_CHECKING:
    # Imported while the fork server's interpreter starts.
    from clusterrun.planning.preparation import Preparation
    from clusterrun.run.node import LocalNode
    from clusterrun.workers.fork_server_client import ForkServer


def start_fork_server(resolved: Resolved, environ: Mapping[str, str]) -> ServerProcess | None:
    """Start the fork server of a job that can run.

    None: it is to be warm, so that it depends on the plan which one serves.

    Raises:
        LauncherError: the log folder can't be written, or the interpreter can't be executed.

    """
    if resolved.job.starting.keep_warm:
        return None
    check_log_folder(resolved.job.fact("log_dir"))
    environment = environment_before(resolved.job, environ, resolved.unset)
    return ServerProcess(_command(resolved.job, environment))


def warm_fork_server(
    node: LocalNode,
    preparation: Preparation | None,
    owned_socket: str,
    notice: Callable[[str], object],
) -> ForkServer:
    """Return a fork server that an earlier job has left, or a new one, which stays if it can.

    Args:
        node: this node.
        preparation: what its fork server is to prepare; None: its workers are spawned.
        owned_socket: where a warm server listens that the caller ends itself; "": it is for all
            launches of the program.
        notice: prints a line for the user.

    Raises:
        LauncherError: the log folder can't be written, or the interpreter can't be executed.

    """
    from clusterrun.workers.fork_server_client import ForkServer
    from clusterrun.workers.warm import socket_of, warm_or_new

    job, command = node.job, _command(node.job, node.environment)
    check_log_folder(job.fact("log_dir"))
    path = Path(owned_socket) if owned_socket else None
    found = None
    if preparation is None:
        remark = "the workers are spawned, so that nothing stays"
    elif job.workers.cluster != "none" and path is None:
        cluster = job.workers.cluster
        remark = f"nothing stays after a job of {cluster}, which ends with all of its processes"
    elif (path := path or socket_of(node.variables, preparation)) is None:
        remark = "there is no folder for its socket that is yours alone"
    else:
        seconds, is_owned = job.starting.keep_warm, bool(owned_socket)
        found, remark = warm_or_new(command, preparation, path, seconds, is_owned=is_owned)
    is_as_asked = found is not None and (found.is_warm or found.stay is not None)
    if remark and (job.output.verbose or not (is_as_asked or owned_socket)):
        about = "" if found is not None else f"{job.origin('keep_warm')}: "
        notice(f"{about}{remark}")
    return found or ForkServer.started(ServerProcess(command))


def _command(job: Job, environment: Mapping[str, str]) -> ServerCommand:
    return ServerCommand(
        job.program.python,
        environment,
        contain=job.failing.contain,
        # Modules that a user names may do anything.
        is_guarded=not isinstance(job.starting.preload, str),
        shown=(job.script.name, *job.script.args),
    )
