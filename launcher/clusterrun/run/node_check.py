"""Whether this machine is fit for the job, as ``clusterrun doctor`` finds (``--check-nodes``)."""

import subprocess
import sys
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from clusterrun.bounds import as_line
from clusterrun.errors import MachineError
from clusterrun.job.job import Job

SECONDS_TO_CHECK = 30.0

NO_FAILURE, SOME_FAILURE = 0, 1
"""The exit codes of a doctor that has not failed itself."""


class _Finding(Struct):
    level: str
    what: str
    found: str


class _Health(Struct):
    """What it prints with --json, as far as it is read here."""

    findings: tuple[_Finding, ...]


def checked(job: Job, environ: Mapping[str, str]) -> str:
    """Return what is wrong with this machine, in a line; "" if nothing is.

    Raises:
        MachineError: something is, and the job has no other node.

    """
    fault = as_line(find_fault(environ))
    if fault and job.agents == 1:
        raise MachineError(
            f"this machine fails its check (--check-nodes): {fault}",
            "clusterrun doctor shows what to do",
        )
    return fault


def find_fault(environ: Mapping[str, str]) -> str:
    """Return the failures that ``clusterrun doctor`` finds in this environment.

    It runs in a process of its own: a driver or a file system that hangs must not hang the job.
    """
    command = [sys.executable, "-P", "-m", "clusterrun", "doctor", "--this-machine", "--json"]
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS_TO_CHECK,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"clusterrun doctor does not end within {SECONDS_TO_CHECK:g} s"
    if done.returncode not in {NO_FAILURE, SOME_FAILURE}:
        last = done.stderr.decode(errors="replace").rstrip().rpartition("\n")[2]
        return f"clusterrun doctor ended with {done.returncode}: {last}"
    health = msgspec.json.decode(done.stdout, type=_Health)
    failures = [each for each in health.findings if each.level == "failure"]
    return ", ".join(f"{each.what}: {each.found}" for each in failures)
