"""Native frames and locals of ranks, printed by py-spy; runs in a child that the agent can kill."""

import time
from collections.abc import Mapping
from pathlib import Path

from clusterrun.bounds import MAX_TEXT_LENGTH, as_text
from clusterrun.policy.stacks import StackGroup
from clusterrun.workers.py_spy import PySpy

MAX_PER_NODE = 1 << 18
"""Characters in the answer of a node."""

TRUNCATED = "\n(the rest is omitted)"


def native_stacks(program: Path, pids: Mapping[int, int], seconds: float) -> tuple[StackGroup, ...]:
    """Return what py-spy prints of each process, or why it prints nothing.

    Args:
        program: the path of py-spy.
        pids: process ids, by the number of the worker in the job.
        seconds: time limit for all processes together; py-spy reads the symbols of all their libraries.

    """
    until = time.monotonic() + seconds
    most = min(MAX_TEXT_LENGTH, MAX_PER_NODE // max(1, len(pids)))
    spies = {
        number: PySpy(program, "dump", "--native", "--locals", "--pid", str(pid))
        for number, pid in pids.items()
    }
    groups = []
    for number, spy in spies.items():
        spy.wait(until)
        found = bool(spy.printed.strip())
        late = f"py-spy took longer than {seconds:g} s" if spy.is_late else ""
        output = (spy.printed if found else spy.errors).strip()
        text = "\n".join(filter(None, [output, late])) or "py-spy has printed nothing"
        if len(text) > most:
            text = text[: most - len(TRUNCATED)] + TRUNCATED
        groups.append(StackGroup((number,), as_text(text), found))
    return tuple(groups)
