"""What a call of suspend.requested costs in a job: under a microsecond, and no system call."""

import re
import sys
from pathlib import Path

import pytest

from tests.contract.launched import Launcher

TIMES_A_MILLION = """
    import statistics, time
    from clusterrun import suspend

    requested, clock = suspend.requested, time.perf_counter_ns
    requested()
    times = []
    for _ in range(1_000_000):
        began = clock()
        requested()
        times.append(clock() - began)
    print("median", int(statistics.median(times)), flush=True)
"""

CALLS_A_MILLION = """
    import os
    from clusterrun import suspend

    requested = suspend.requested
    requested()
    numbers = range(1_000_000)
    os.getsid(0)
    for _ in numbers:
        requested()
    os.getsid(0)
"""


@pytest.mark.long
def test_a_call_takes_less_than_a_microsecond(clusterrun: Launcher) -> None:
    """The median of a million, the clock's own time included."""
    job = clusterrun.script(TIMES_A_MILLION, workers=1)

    [nanoseconds] = job.numbers("median")

    assert job.ended().code == 0
    assert nanoseconds < 1000


@pytest.mark.needs("strace")
def test_a_call_is_not_a_system_call(clusterrun: Launcher, tmp_path: Path) -> None:
    """Strace sees none between two calls of getsid, with a million of ours between them."""
    trace = tmp_path / "trace"
    wrapper = tmp_path / "traced"
    script = tmp_path / "million.py"
    script.write_text("\n".join(line[4:] for line in CALLS_A_MILLION.splitlines()))
    wrapper.write_text(f"#!/bin/sh\nexec strace -o {trace} {sys.executable} {script}\n")
    wrapper.chmod(0o755)
    job = clusterrun.command("--no-python", str(wrapper), workers=1)

    assert job.ended(100).code == 0
    calls = re.findall(r"(?m)^(\w+)\(", trace.read_text())
    first, second = (at for at, name in enumerate(calls) if name == "getsid")
    assert "/attempt-0/suspend" in trace.read_text()
    assert calls[first + 1 : second] == []
