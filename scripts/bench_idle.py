"""Measure the memory and the wake-ups of an idle launcher, beside torchrun's.

Two workers sleep. Memory is PSS: a page shared by n processes counts 1/n. Wake-ups are the
voluntary context switches of the launcher's threads (voluntary_ctxt_switches).
"""

import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
from side_by_side import (
    OURS,
    SECONDS_TO_END,
    THEIRS,
    Measured,
    command,
    medians,
    parser,
    proportional_megabytes,
    row,
    started,
    written_by_all,
)

PROGRAM = """
import os
import sys
import time
from pathlib import Path

Path(sys.argv[1], f"{os.environ['RANK']}.sleeps").write_text(f"{os.getpid()}")
time.sleep(600)
"""

SECONDS_TO_SETTLE = 2.0
"""Seconds after which a launcher has nothing left to do for its start."""

SECONDS_WATCHED = 10.0

RELAY = "clusterrun-rela"
"""The kernel keeps 15 letters."""


def main() -> None:
    """Measure, then print the medians."""
    options = parser("Weigh an idle launcher, and count its wake-ups.", nproc=2).parse_args()
    measures = {name: partial(idle, name, options.nproc) for name in (OURS, THEIRS)}
    found = medians(options.runs, measures, warm_up=False)
    agent, relay, fork_server, *wakeups = found[OURS]
    theirs, _, _, their_wakeups, *_ = found[THEIRS]
    print(row("idle launcher: memory (PSS)", agent, theirs, unit="MB", digits=0))
    helpers = f"its relay {relay:.0f} MB and fork server {fork_server:.0f} MB included"
    print(
        row(f"idle launcher, {helpers}", agent + relay + fork_server, theirs, unit="MB", digits=0)
    )
    who = "its relay {:.0f} and fork server {:.0f} times besides".format(*wakeups[1:])
    during = f"{SECONDS_WATCHED:.0f} s, {who}"
    print(
        row(
            f"idle launcher: wakes up in {during}",
            wakeups[0],
            their_wakeups,
            unit="times",
            digits=0,
        )
    )


def idle(name: str, nproc: int) -> Measured:
    """Return megabytes of the launcher, relay and fork server, then the wake-ups of each."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "sleeps.py")
        script.write_text(PROGRAM)
        with started(command(name, nproc, script, folder)) as job:
            asleep = written_by_all(Path(folder), "*.sleeps", nproc, SECONDS_TO_END, job)
            if len(asleep) < nproc:
                job.complain(f"{len(asleep)} of {nproc} ranks started")
                return 6 * (math.inf,)
            time.sleep(SECONDS_TO_SETTLE)
            ranks = {int(text) for text in asleep.values()}
            agent = psutil.Process(job.process.pid)
            helpers = [child for child in agent.children() if child.pid not in ranks]
            relay = [child for child in helpers if child.name() == RELAY]
            groups = [[agent], relay, [child for child in helpers if child not in relay]]
            before = list(map(wakeups, groups))
            time.sleep(SECONDS_WATCHED)
            woken = [now - then for now, then in zip(map(wakeups, groups), before, strict=True)]
            held = [sum(map(proportional_megabytes, group)) for group in groups]
            return *held, *woken


def wakeups(processes: Sequence[psutil.Process]) -> int:
    """Return how often the threads of these processes have waited and gone on so far."""
    return sum(
        int(line.split()[1])
        for process in processes
        for status in Path(f"/proc/{process.pid}/task").glob("*/status")
        for line in lines(status)
        if line.startswith("voluntary_ctxt_switches:")
    )


def lines(file: Path) -> list[str]:
    """Return the lines of a file in /proc; none if its thread has ended meanwhile."""
    with suppress(OSError):
        return file.read_text().splitlines()
    return []


if __name__ == "__main__":
    main()
