"""``clusterrun bench`` on one and two hosts, which it starts by ssh."""

import pytest

from tests.contract.launched import Launcher
from tests.hosts.scaling_ranks import ON_ONE_AND_TWO_NODES, RANKS_SCALE, measured
from tests.hosts.ssh_hosts import SshHosts


@pytest.mark.long
def test_bench_on_one_and_two_hosts(ssh: SshHosts, clusterrun: Launcher) -> None:
    options = ("--nnodes=1,2", "--nproc=1,2", "--json", *ssh.options("n0,n1"))
    done = clusterrun.script(RANKS_SCALE, "bench", *options, around=ssh.client.around).ended(100)

    assert done.code == 0, done
    assert measured(done.out) == ON_ONE_AND_TWO_NODES
    assert ssh.left(10) == []
