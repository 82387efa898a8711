"""Reads what Slurm says of a job: scontrol(1), and sacct(1) for one that has long ended."""

import re
from collections.abc import Mapping
from pathlib import Path

from clusterrun.domain.submissions.job_state import JobState, Phase
from clusterrun.errors import ExitCode, exit_code_of_signal

ACCOUNTING = (
    *("sacct", "--allocations", "--noheader", "--parsable2"),
    "--format=JobID,State,ExitCode",
)

ENDS: Mapping[str, int] = {
    "BOOT_FAIL": ExitCode.NODE_LOST,
    "CANCELLED": exit_code_of_signal(15),
    "COMPLETED": 0,
    "DEADLINE": 124,
    "FAILED": 1,
    "NODE_FAIL": ExitCode.NODE_LOST,
    "OUT_OF_MEMORY": exit_code_of_signal(9),
    "PREEMPTED": exit_code_of_signal(15),
    "REVOKED": 1,
    "TIMEOUT": 124,
}
"""States of a job that has ended ("JOB STATE CODES" of squeue(1)), and the exit code of one that has
no other; 124 as timeout(1) has it."""

RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "SUSPENDED", "RESIZING"}


def read_scontrol(text: str) -> tuple[JobState, ...]:
    """Read ``scontrol --oneliner show job``: a line for each job of an array, or group of them.

    Of the groups of nodes of a heterogeneous job, the first one's line is that of its script.
    """
    lines = (dict(re.findall(r"(\w+)=(\S*)", line)) for line in text.splitlines() if line.strip())
    return tuple(
        _described(fields)
        for fields in lines
        if "JobState" in fields and fields.get("HetJobOffset", "0") == "0"
    )


def read_sacct(text: str) -> tuple[JobState, ...]:
    """Read ``JobID|State|ExitCode`` lines; a state may be followed by words.

    The first group of nodes of a heterogeneous job has ``ID+0``.
    """
    rows = (line.split("|") for line in text.splitlines())
    return tuple(
        _state(job_id.removesuffix("+0"), state.partition(" ")[0], "", code)
        for job_id, state, code in (row for row in rows if len(row) == 3)
        if job_id.partition("+")[2] in {"", "0"}
    )


def _described(fields: Mapping[str, str]) -> JobState:
    task = fields.get("ArrayTaskId")
    job_id = f"{fields['ArrayJobId']}_{task}" if task else fields["JobId"]
    found = _state(
        job_id, fields["JobState"], fields.get("Reason", ""), fields.get("ExitCode", "0:0")
    )
    if found.phase is Phase.WAITING:
        return found
    output, error = (_path(fields.get(name, "")) for name in ("StdOut", "StdErr"))
    return JobState(
        found.job_id,
        found.phase,
        found.words,
        found.exit_code,
        output,
        None if error == output else error,
    )


def _state(job_id: str, state: str, reason: str, code: str) -> JobState:
    if state not in ENDS:
        phase = Phase.RUNNING if state in RUNNING else Phase.WAITING
        why = f" ({reason})" if reason not in {"", "None"} and phase is Phase.WAITING else ""
        return JobState(job_id, phase, state + why)
    status, _, number = code.partition(":")
    own = int(status) or (exit_code_of_signal(int(number)) if int(number or 0) else 0)
    # Slurm has signal 125 for a job that was killed for its memory.
    is_own = own and state in {"FAILED", "CANCELLED", "PREEMPTED"}
    return JobState(job_id, Phase.ENDED, state, own if is_own else ENDS[state])


def _path(text: str) -> Path | None:
    return Path(text) if text not in {"", "/dev/null", "(null)"} else None
