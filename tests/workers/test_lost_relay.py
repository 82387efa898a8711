"""The workers of a node whose relay was killed."""

import os
import signal
from pathlib import Path

from clusterrun.bounds import LocalRank
from clusterrun.policy import actions, events
from clusterrun.scratch import Scratch
from clusterrun.workers import node_workers, terminal
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.routes import LauncherOutput, Routes

from tests.plans import job
from tests.workers.fork_server_bench import Bench


def test_output_ends_at_once_without_a_relay(bench: Bench, tmp_path: Path) -> None:
    """Its tail is unknown."""
    relay = RelayClient.start(LauncherOutput(1, 2))
    relay.run_in(bench.loop)
    workers = node_workers.NodeWorkers(
        bench.server,
        relay,
        Scratch(tmp_path / "scratch"),
        standard_input=terminal.StandardInput(terminal=None, workers=1),
        routes=Routes(job(), None),
        loop=bench.loop,
    )

    os.kill(relay.pid, signal.SIGKILL)
    bench.expect(events.HelperLost)
    workers.perform(actions.CollectOutput(LocalRank(0)))

    assert bench.event() == events.OutputEnded(LocalRank(0), "", "", 7.0)
    relay.close(0.0)
