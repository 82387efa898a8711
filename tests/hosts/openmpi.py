"""Open MPI on the hosts of this machine: mpirun on the first one starts daemons on the others."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.host import Host

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

AGENT = """#!/bin/sh
host=$1
shift
case $host in
{cases}
esac
echo "no such host: $host" >&2
exit 1
"""
"""What mpirun uses as ssh; the words after the host are for a shell."""


def mpirun(
    hosts: Sequence[Host], folder: Path, *options: str, bind_to: str = "none"
) -> tuple[str, ...]:
    """Return the words before a command that start it on ``hosts`` with ``options``."""
    agent = folder / "agent.sh"
    cases = "\n".join(
        f'{host.name}) exec {shlex.join(host.around)} sh -c "$*" ;;' for host in hosts
    )
    agent.write_text(AGENT.format(cases=cases))
    agent.chmod(0o755)
    slots = ",".join(f"{host.name}:8" for host in hosts)
    settings = ("plm_rsh_agent", str(agent), "oob_tcp_if_include", "eth0")
    pairs = zip(settings[::2], settings[1::2], strict=True)
    words = [word for name, value in pairs for word in ("--mca", name, value)]
    launch = ("mpirun", "--host", slots, "--oversubscribe", "--bind-to", bind_to, *words, *options)
    environ = tuple(f"{name}={value}" for name, value in AS_ROOT.items())
    return (*hosts[0].around, "env", *environ, f"PATH={os.environ['PATH']}", *launch)


def without_warnings(err: str) -> str:
    """Return standard error without a warning of mpirun that depends on timing."""
    lines = err.splitlines(keepends=True)
    return "".join(line for line in lines if "plm:rsh: Warning: setpgid" not in line)
