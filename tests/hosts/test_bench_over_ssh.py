"""``clusterrun bench`` on one and two hosts, which it starts by ssh."""

import json

import pytest

from tests.contract.launched import Launcher
from tests.hosts.ssh_hosts import SshHosts

PRINTS = """
    import os

    if os.environ["RANK"] == "0":
        for _ in range(4):
            print(10 * int(os.environ["WORLD_SIZE"]), "samples/s", flush=True)
"""


@pytest.mark.long
def test_one_host_and_two(ssh: SshHosts, clusterrun: Launcher) -> None:
    """The first hosts of the list run, with one and two workers each; nothing is left."""
    options = ("--nnodes=1,2", "--nproc=1,2", "--json", *ssh.options("n0,n1"))
    done = clusterrun.script(PRINTS, "bench", *options, around=ssh.client.around).ended(100)

    assert done.code == 0, done
    rows = json.loads(done.out)["rows"]
    assert [(row["nodes"], row["ranks"], row["throughput"]) for row in rows] == [
        (1, 1, 10.0),
        (1, 2, 20.0),
        (2, 2, 20.0),
        (2, 4, 40.0),
    ]
    assert ssh.left(10) == []
