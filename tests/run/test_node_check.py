"""``--check`` on a node: one command runs at a time."""

import time

import pytest
from clusterrun.loop import Loop
from clusterrun.planning.plan import WorkerSlot
from clusterrun.policy import events
from clusterrun.run.node import LocalNode
from clusterrun.run.node_check import NodeCheck

from tests.plans import job, machine


@pytest.mark.parametrize("times", [1, 3])
def test_running_check_is_not_started_again(times: int) -> None:
    """One result follows, however often node 0 requests the check."""
    spec = job(check="sleep 0.2", rdzv_timeout=10.0)
    node = LocalNode(
        spec, (), {}, {"PATH": "/usr/bin:/bin"}, machine({0: "0-1"}), (WorkerSlot(()),)
    )
    loop = Loop[events.Event](time.monotonic)
    printed = list[str]()
    check = NodeCheck(node, printed.append, loop)
    for _ in range(times):
        check.start()
    loop.at("patience", loop.clock() + 10.0, events.ForkServerPrepared)
    first = loop.next_event()
    loop.at("patience", loop.clock() + 0.3, events.ForkServerPrepared)
    second = loop.next_event()
    check.close()
    loop.close()

    assert isinstance(first, events.NodeChecked)
    assert first.fault == ""
    assert isinstance(second, events.ForkServerPrepared)
    assert printed == []
