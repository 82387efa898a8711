"""Ranks whose throughput grows with their number, and the figures of ``bench --json``."""

import json

RANKS_SCALE = """\
import os

if os.environ["RANK"] == "0":
    for _ in range(4):
        print(10 * int(os.environ["WORLD_SIZE"]), "samples/s", flush=True)
"""

ON_ONE_AND_TWO_NODES = [(1, 1, 10.0), (1, 2, 20.0), (2, 2, 20.0), (2, 4, 40.0)]
"""With one and with two workers per node."""


def measured(out: str) -> list[tuple[int, int, float]]:
    """Return nodes, ranks and throughput of each row that was printed."""
    rows = json.loads(out)["rows"]
    return [(row["nodes"], row["ranks"], row["throughput"]) for row in rows]
