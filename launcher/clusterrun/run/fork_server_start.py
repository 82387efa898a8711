"""Starts a job's fork server, before everything else because its interpreter takes time to start."""

from collections.abc import Mapping

from clusterrun.job.resolve import Resolved
from clusterrun.planning.variables import user_environment
from clusterrun.workers.fork_server_process import ServerCommand, ServerProcess
from clusterrun.workers.relay.routes import check_log_folder


def start_fork_server(resolved: Resolved, environ: Mapping[str, str]) -> ServerProcess:
    """Start the fork server of a job.

    Raises:
        LauncherError: the log folder can't be written, or the interpreter can't be executed.

    """
    job = resolved.job
    check_log_folder(job.setting("log_dir"))
    return ServerProcess(
        ServerCommand(
            job.program.python,
            user_environment(job, environ, resolved.unset),
            # Modules that the user has listed may do anything.
            is_guarded=not isinstance(job.starting.preload, str),
            shown=(job.script.name, *job.script.args),
        )
    )
