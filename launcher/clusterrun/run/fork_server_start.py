"""Starting the fork server of a job: first of all, as its interpreter takes time to start."""

from collections.abc import Mapping

from clusterrun.job.resolve import Resolved
from clusterrun.planning.variables import environment_before
from clusterrun.workers.fork_server_process import ForkServerProcess
from clusterrun.workers.relay.routes import check_log_folder


def start_fork_server(resolved: Resolved, environ: Mapping[str, str]) -> ForkServerProcess:
    """Start the fork server of a job that can run.

    Raises:
        LauncherError: the log folder can't be written, or the interpreter can't be executed.

    """
    job = resolved.job
    check_log_folder(job.fact("log_dir"))
    program = job.program
    return ForkServerProcess.start(
        job.python,
        environment_before(job, environ, resolved.unset),
        contain=job.failing.contain,
        shown=(program.name, *program.args),
    )
