"""``clusterrun --launcher ssh``: open the connections, run the job, end with it."""

import gc
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from shutil import which

from clusterrun.domain.signal_names import signal_name
from clusterrun.errors import UsageError, exit_code_of_signal
from clusterrun.job.over_ssh import OverSsh
from clusterrun.job.resolve import Resolved
from clusterrun.job.sources import CommandLine
from clusterrun.ssh.connection import Connection
from clusterrun.ssh.connections import Connections
from clusterrun.ssh.host_messages import interpreters_of, messages
from clusterrun.ssh.merged_output import MergedOutput, own_outputs
from clusterrun.ssh.opening import Opening
from clusterrun.ssh.remote_command import interpreter_lines
from clusterrun.ssh.running import Running, Times
from clusterrun.ssh.ssh_command import ssh_command

SECONDS_TO_PRINT = 2.0
"""How long the last lines may take."""

SECONDS_BETWEEN_TRIES = 0.05


def launch_over_ssh(
    resolved: Resolved, over_ssh: OverSsh, line: CommandLine, environ: Mapping[str, str]
) -> int:
    """Run the job on all hosts; return its exit code.

    Raises:
        UsageError: ssh is not installed here, or a host can't run the job; nothing was started.
        RendezvousError: a host can't be reached; nothing was started.

    """
    ssh = which("ssh", path=environ.get("PATH"))
    if ssh is None:
        raise UsageError(
            f"{over_ssh.launcher.origin} is ssh, and there is no program ssh on PATH",
            "install OpenSSH; on Debian:\n  apt-get install openssh-client",
        )
    job, pythons = resolved.job, interpreters_of(resolved.job)
    lines = interpreter_lines(pythons)
    jobs = messages(resolved, over_ssh, line, environ)
    hosts = [
        Connection(rank, host, lines, message)
        for rank, (host, message) in enumerate(zip(over_ssh.hosts, jobs, strict=True))
    ]
    gc.enable()
    with ExitStack() as cleanup:
        output = own_outputs()
        cleanup.callback(_print_rest, output)
        connections = Connections(hosts, output, job.failing.heartbeat_timeout)
        cleanup.callback(connections.close)
        command = partial(ssh_command, ssh, options=over_ssh.options)
        opening = Opening(connections, command, pythons[0])
        if (number := opening.run()) is not None:
            output.say(f"clusterrun: {signal_name(number)} before any worker was started")
            return exit_code_of_signal(number)
        times = Times(job.failing.heartbeat_timeout, job.failing.shutdown_timeout)
        return Running(connections, times, outlives_nodes=job.outlives_nodes).run()


def _print_rest(output: MergedOutput) -> None:
    deadline = time.monotonic() + SECONDS_TO_PRINT
    while output.waiting and time.monotonic() < deadline:
        output.flush()
        time.sleep(SECONDS_BETWEEN_TRIES)
