"""The workers of a node with fork server, relay and containment."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.plans import job
from tests.workers.door import (
    PR_SET_CHILD_SUBREAPER,
    CleanedUp,
    CleanUp,
    CollectOutput,
    Event,
    Exited,
    ForkServer,
    ForwardSignal,
    HelperLost,
    LocalRank,
    LogLayout,
    Loop,
    NodePlan,
    NodeWorkers,
    OutputEnded,
    OwnOutput,
    PrintNotice,
    RelayClient,
    Resume,
    Routes,
    Scratch,
    ServerCommand,
    ServerProcess,
    SignalNotHandled,
    SignalWorkers,
    StandardInput,
    WorkerEnded,
    WorkerStarted,
    WorkerStopped,
    prctl,
    state_and_parent,
)
from tests.workers.fork_server_bench import Reader, end_of, plan_of, worker_of

FIRST, SECOND = LocalRank(0), LocalRank(1)

INPUT = StandardInput(terminal=None, workers=2)

ERRORS = "TORCHELASTIC_ERROR_FILE"


class Node:
    """The workers of a node with all that they need, and what they print to."""

    def __init__(self, folder: Path) -> None:
        reader, screen = os.pipe()
        self.printed = Reader(reader)
        self.scratch = Scratch(folder / "scratch")
        self.fork_server = ForkServer.started(
            ServerProcess(ServerCommand(sys.executable, os.environ))
        )
        self.relay = RelayClient.start(OwnOutput(screen, screen), self.scratch.path)
        self.fork_server.orphans.ours.add(self.relay.pid)
        os.close(screen)
        logs = LogLayout(folder / "logs", "run")
        routes = Routes(job(), logs)
        self.loop = Loop[Event](lambda: 7.0)
        for helper in (self.relay, self.fork_server):
            helper.run_in(self.loop)
        self.workers = NodeWorkers(
            self.fork_server,
            self.relay,
            self.scratch,
            standard_input=INPUT,
            routes=routes,
            loop=self.loop,
        )
        self._is_open = True

    def start(self, *scripts: str) -> NodePlan:
        workers = tuple(
            worker_of(
                rank, {"SCRIPT": script, ERRORS: f"{self.workers.error_files}/0/{rank}/error.json"}
            )
            for rank, script in enumerate(scripts)
        )
        plan = replace(plan_of(["sh", "-c", 'eval "$SCRIPT"']), signal_group=True, workers=workers)
        self.workers.start(plan)
        return plan

    def event(self) -> Event:
        return self.loop.next_event()

    def expect(self, *events: Event) -> None:
        received = [self.event() for _ in events]
        assert all(event in received for event in events), received

    def close(self) -> str:
        """End it, once; return what has been printed and not been read."""
        if not self._is_open:
            return ""
        self._is_open = False
        self.workers.close()
        self.fork_server.close()
        self.relay.close(2.0)
        self.loop.close()
        printed = self.printed.rest()
        os.close(self.printed.descriptor)
        return printed


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()
    prctl(PR_SET_CHILD_SUBREAPER, 0)


def is_alive(pid: int) -> bool:
    return state_and_parent(pid)[0] not in "ZX"


def test_from_start_to_end(node: Node) -> None:
    """Workers start, print, write their error files and end; all is reported."""
    plan = node.start("echo hello; echo oops >&2; exit 3", f"printf '{{}}' > ${ERRORS}")
    starts = [
        event for event in (node.event() for _ in range(4)) if isinstance(event, WorkerStarted)
    ]

    for rank in (FIRST, SECOND):
        node.workers.perform(CollectOutput(rank))
    node.expect(OutputEnded(FIRST, "oops", "", 7.0), OutputEnded(SECOND, "", "{}", 7.0))
    node.workers.perform(CleanUp())
    node.expect(CleanedUp((), 7.0))

    assert {start.local_rank for start in starts} == {FIRST, SECOND}
    assert sorted(node.close().splitlines()) == ["[rank 8] hello", "[rank 8] oops"]
    [out, err] = [
        Path(node.workers.logs(plan)[FIRST]).with_suffix(suffix) for suffix in (".out", ".err")
    ]
    assert (out.read_text(), err.read_text()) == ("hello\n", "oops\n")


def test_where_output_is_kept(node: Node, tmp_path: Path) -> None:
    """The report names the file of standard error."""
    plan = node.start("true", "true")

    folder = tmp_path / "logs" / "run" / "attempt-0" / "node7-0"
    assert node.workers.logs(plan) == {
        FIRST: str(folder / "rank-8.err"),
        SECOND: str(folder / "rank-9.err"),
    }


def test_closing_leaves_nothing(node: Node) -> None:
    """No worker is left, no daemon of a worker, no process of ours, no folder."""
    node.start("setsid sleep 1000 & echo daemon $!; exec sleep 1000")
    started = node.event()
    assert isinstance(started, WorkerStarted)
    daemon = int(node.printed.line().split()[-1])

    node.close()

    pids = [daemon, started.pid, node.fork_server.pid, node.relay.pid]
    assert not [pid for pid in pids if is_alive(pid)]
    assert not node.scratch.path.exists()


def test_notices_are_printed_among_the_lines(node: Node) -> None:
    node.workers.perform(PrintNotice("something"))

    assert node.close() == "clusterrun: something\n"


def test_signals_reach_workers(node: Node) -> None:
    """They go to one worker, or to all that handle them."""
    node.start(
        "trap 'exit 4' TERM; trap 'echo got it' USR1; echo ready; while :; do sleep 1000 & wait; done"
    )
    node.event()
    assert node.printed.line() == "[rank 8] ready"

    node.workers.perform(ForwardSignal(signal.SIGUSR1))
    event = node.event()
    assert node.printed.line() == "[rank 8] got it"
    node.workers.perform(SignalWorkers(frozenset({FIRST}), signal.SIGTERM, group=False))

    assert event == SignalNotHandled(signal.SIGUSR1, (), 7.0)
    node.expect(WorkerEnded(FIRST, Exited(4), 7.0))


def test_without_a_fork_server_the_agent_cleans_up(node: Node) -> None:
    """What outlives it becomes the agent's child, and is killed."""
    node.start("setsid sleep 1000 & echo daemon $!; exec sleep 1000")
    node.event()
    daemon = int(node.printed.line().split()[-1])

    os.kill(node.fork_server.pid, signal.SIGKILL)
    lost = node.event()
    node.workers.perform(CleanUp())
    cleaned = node.event()

    assert lost == HelperLost("fork server", "was killed by SIGKILL", 9, 7.0)
    assert cleaned == CleanedUp((), 7.0)
    assert not is_alive(daemon)


def test_what_a_lost_fork_server_has_left_ends_with_its_client(node: Node) -> None:
    """Nobody may ask for a clean-up: the job may have ended before its workers."""
    node.start("setsid sleep 1000 & echo daemon $!; exec sleep 1000")
    node.event()
    daemon = int(node.printed.line().split()[-1])
    os.kill(node.fork_server.pid, signal.SIGKILL)
    node.event()

    node.fork_server.close()

    assert not is_alive(daemon)


def test_without_a_relay_output_ends_at_once(node: Node) -> None:
    """Its tail is unknown, and nothing is printed; the agent removes the scratch folder."""
    os.kill(node.relay.pid, signal.SIGKILL)

    assert node.event() == HelperLost("relay", "was killed by SIGKILL", 9, 7.0)
    node.workers.perform(CollectOutput(FIRST))
    assert node.event() == OutputEnded(FIRST, "", "", 7.0)
    node.workers.perform(PrintNotice("unheard"))
    assert node.close() == ""
    assert not node.scratch.path.exists()


def test_a_lost_fork_server_is_not_waited_for(node: Node) -> None:
    """Its number may belong to a stranger by now."""
    os.kill(node.fork_server.pid, signal.SIGKILL)
    node.event()
    stranger = os.posix_spawnp("sleep", ["sleep", "1000"], os.environ)
    node.fork_server.pid = stranger
    node.fork_server.orphans.ours.add(stranger)

    node.close()

    assert is_alive(stranger)
    os.kill(stranger, signal.SIGKILL)
    assert end_of(stranger) == signal.SIGKILL


def test_workers_are_continued(node: Node) -> None:
    """Their whole groups are continued, as they were stopped."""
    node.start("kill -STOP $$; exit 5")
    node.event()
    node.expect(WorkerStopped(FIRST, signal.SIGSTOP, 7.0))

    node.workers.perform(Resume())

    node.expect(WorkerEnded(FIRST, Exited(5), 7.0))
