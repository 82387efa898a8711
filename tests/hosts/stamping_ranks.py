"""Ranks that note the time of each step, and whether two attempts made steps at once.

They catch SIGTERM to save, as training scripts do: only SIGKILL ends them. All hosts share a clock.
"""

import math
from pathlib import Path

from tests.contract.worker_scripts import RANKS_RENDEZVOUS

STAMPS_UNTIL_TOLD = f"""
    import signal
{RANKS_RENDEZVOUS}
    import pathlib
    signal.signal(signal.SIGTERM, lambda *_: None)
    attempt, host = os.environ["TORCHELASTIC_RESTART_COUNT"], os.uname().nodename
    print("pid", os.getpid(), flush=True)
    print("begins", attempt, size, host, flush=True)
    with open(f"trains-{{attempt}}-{{host}}", "a", buffering=1) as notes:
        while not pathlib.Path("enough").exists():
            notes.write(f"{{time.monotonic()}}\\n")
            time.sleep(0.02)
"""
"""All ranks meet at MASTER_PORT, then make steps until there is a file."""


def overlap(folder: Path) -> float:
    """Return the most seconds from an attempt's first step to the last one of those before; < 0: none.

    -inf: there were not two attempts.
    """
    steps: dict[int, list[float]] = {}
    for notes in folder.glob("trains-*"):
        times = [float(line) for line in notes.read_text().splitlines()]
        steps.setdefault(int(notes.name.split("-")[1]), []).extend(times)
    most = newest = -math.inf
    for _, times in sorted(steps.items()):
        most = max(most, newest - min(times, default=math.inf))
        newest = max([newest, *times])
    return most
