"""``--events`` on several hosts: each node writes its own file; all record a lost node."""

import json
import signal
from pathlib import Path
from typing import Any

from tests.contract.launched import Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended

WAIT = """
    import os, signal
    print("ready", flush=True)
    signal.pause()
"""


def events_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_of_lost_node(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Its own file ends early. The others name it and their exit code."""
    jobs = Nodes(clusterrun, hosts, WAIT).start_all("--events=events-%n", workers=(2, 1, 1))
    for job in jobs:
        job.wait_for("ready")

    jobs[2].signal(signal.SIGKILL)
    ends = ended(jobs)

    assert codes(ends[:2]) == [5, 5]
    files = [events_in(clusterrun.folder / f"events-{rank}") for rank in range(3)]
    assert [file[0]["host"] for file in files] == ["n0", "n1", "n2"]
    assert [event["rank"] for event in files[1] if event["event"] == "started"] == [2]
    for file in files[:2]:
        (lost,) = [event for event in file if event["event"] == "lost"]
        assert (lost["node_rank"], lost["host"], lost["how"]) == (2, "n2", "is gone")
        assert (file[-1]["event"], file[-1]["code"], file[-1]["reason"]) == (
            "ended",
            5,
            "node lost",
        )
    # It may have been killed before it recorded that its worker runs.
    assert [event["event"] for event in files[2]] in (["joined"], ["joined", "started"])
