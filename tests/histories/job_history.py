"""A job as its user sees it, without processes: events on ranks and nodes, and what follows.

A history is a list of events in the words of docs/index.md. What follows is text, one line for each
effect outside of the policy: a signal to ranks, a line on the terminal, a start, an end. Histories name no
module, class or message of the product; only this file does, so only it changes with the policy.
"""

import signal
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec
from clusterrun.bounds import GlobalRank, LocalRank
from clusterrun.cpuset import number_ranges
from clusterrun.job.job import MAIN, ProgramKind, WorkerProgram
from clusterrun.job.options import OnFailure, OnHang
from clusterrun.job.services import Service
from clusterrun.planning.plan import World
from clusterrun.policy import actions, answers, events, job_events, messages, nccl, queries
from clusterrun.policy import outcome as outcomes
from clusterrun.policy.coordinator import Running
from clusterrun.policy.node import Attempt, SuspensionOnNode
from clusterrun.policy.results import conclude, results_of
from clusterrun.policy.stacks import StackGroup
from clusterrun.signals import SignalReceived
from msgspec import Struct
from msgspec.structs import replace

from tests.network.nodes import hello, opened_job
from tests.network.nodes import result as result_of
from tests.plans import plan_of, worker_of
from tests.plans import world as world_of


def refused(kind: str) -> str:
    """Return the line printed when node 1 has sent a message of this kind, which no agent sends."""
    what = f"it sent an unexpected message ({kind})"
    return f"node 0 prints: refused n1 (pid 11) at 10.0.0.1: {what}"


AttemptOrder = messages.Stop | messages.HoldRanks | messages.SaveAt | messages.CancelSuspension

GRACE = 25.0
"""Seconds."""

Worker = int | str
"""A rank; a worker of a service by its name, "server 0", or by its number in the job."""

Name = tuple[str, int]
"""A worker's service ("" for the main program), and its rank in that."""

ANSWERS = {
    messages.Refusal.GIVE_UP: "gives up: ",
    messages.Refusal.TRY_NEXT_PORT: "calls elsewhere: ",
    messages.Refusal.CHECK_FAILED: "may not work: ",
    messages.Refusal.SELF_CONNECTION: "has called itself",
}


EFFECTS: dict[type[actions.Action], str] = {
    actions.Pause: "stops with its ranks",
    actions.Resume: "continues its ranks",
    actions.CollectStacks: "asks its ranks for their stacks",
    actions.WatchActivity: "watches whether its ranks move",
    actions.RunCheck: "checks itself",
    actions.HoldRanks: "holds its ranks",
    actions.LetRanksExit: "lets ranks that have saved end",
}
"""The effects of actions that have no arguments."""


class Node:
    """An agent, its ranks, and messages in transit."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size, self.first, self.attempt = number, size, 0, 0
        self.state: Attempt | None = None
        """None: it has no rank yet."""
        self.up: deque[messages.AgentMessage] = deque()
        self.down: deque[messages.FromCoordinator] = deque()
        self.names: Sequence[Name] = ()
        """The names of its workers, by local rank."""
        self.alive: set[LocalRank] = set()
        self.unread: list[LocalRank] = []
        """Ranks that have ended, but whose last lines are not known yet."""
        self.last_lines: dict[LocalRank, str] = {}
        self.leftovers = self.is_over = self.is_frozen = self.is_cut_off = False
        self.left: list[events.LeftoverProcess] = []
        """Left-over processes of ranks, even while the ranks run."""
        self.awaits_left = False
        self.named: deque[events.LeftoversNamed] = deque()
        """Events with their names that are in transit."""
        self.is_dropped = False
        """Node 0 or the network has closed the connection."""
        self.failing: set[LocalRank] = set()
        """Ranks whose scripts have failed, but whose processes run."""
        self.wanted: int | None = None
        """The query for which stacks are collected; 0: the agent's own."""
        self.stacks: dict[LocalRank, StackGroup] = {}
        self.on_screen = False
        """Its only rank has printed its stack itself."""
        self.outcome: outcomes.Outcome | None = None
        self.deadline: float | None = None
        self.world: World | None = None
        """The world of its attempt, or of the next one that it has received."""
        self.orders: list[AttemptOrder] = []
        """All orders that it has received."""
        self.may_suspend = False
        """It got ``SuspensionPossible`` before it had a rank."""
        self.leader = "n0"
        """The host of node 0."""
        self.queries = 0
        """How many queries users of this node have made."""
        self.restarted = ""


class Job:
    """All nodes of a job whose ranks run, and the effects since then."""

    def __init__(
        self,
        nodes: int = 1,
        workers: int | Sequence[int] = 1,
        *,
        restarts: int = 0,
        spares: int = 0,
        least: int | None = None,
        most: int | None = None,
        rejoin: float = 0.0,
        check: str = "",
        final_codes: Iterable[int] = (),
        no_fail_fast: bool = False,
        terminal: bool = False,
        groups: bool = False,
        grace: float = GRACE,
        starting: Iterable[int] = (),
        debugged: bool = False,
        on_hang: str = "report",
        finds_hangs: float = 0.0,
        suspend_signal: int | None = None,
        suspend_code: int = 75,
        alone: bool = False,
        services: Mapping[str, Mapping[str, Any]] | None = None,
        **opened: Any,
    ) -> None:
        """Start a job.

        Args:
            nodes: the number of participants.
            workers: the number of ranks on each node; a sequence: by node.
            restarts: --max-restarts.
            spares: the number of nodes that wait.
            least: with fewer nodes the job ends; None: the number of nodes never changes.
            most: the highest number of nodes, if ``least`` is given; None: ``nodes``.
            rejoin: --rejoin-timeout.
            check: --check.
            final_codes: --no-restart-exit-codes.
            no_fail_fast: --no-fail-fast.
            terminal: the only rank has the terminal.
            groups: the ranks are not Python programs, so signals go to their groups.
            grace: the grace period in seconds.
            starting: workers of the first attempt whose programs do not run yet, by number.
            debugged: a debugger is attached to the ranks.
            on_hang: --on-hang.
            finds_hangs: --hang-timeout; 0: none.
            suspend_signal: --suspend-signal.
            suspend_code: --suspend-exit-code.
            alone: only node 0 has joined at first; else all have, and their ranks run.
            services: by name; each has ``nodes``, its workers by node rank, and may have ``ready``
                (it is probed), ``timeout`` (of that), ``after`` (services), ``must_finish``, ``world``
                and ``on_failure`` ("restart", "ignore").
            opened: how nodes join; see ``join_history``.

        """
        self.now = 0.0
        self._nccl: nccl.NcclState | None = nccl.NcclState()
        self._slow_queries: list[tuple[Node, int]] = []
        self._lines: list[str] = []
        self.port = 29500
        """The master port of the next attempt."""
        most = nodes if least is None else most or nodes
        self._terminal, self._groups, self._starting = terminal, groups, frozenset(starting)
        self._node_0_runs = True
        """Node 0's agent, which has the coordinator, runs."""
        self.declared_lost: set[int] = set()
        """The nodes that node 0 has told so, whether the message has arrived or not."""
        self.further_attempts = 0
        """The number of attempts after the first one."""
        self.is_ending = False
        """The ranks of all nodes have been ordered to stop, and no other attempt has begun."""
        total = nodes + spares
        sizes = [workers] * total if isinstance(workers, int) else workers
        self._services = {name: _service(name, **has) for name, has in (services or {}).items()}
        self._sizes = {MAIN: dict(enumerate(sizes))} if services else {}
        self._sizes |= {name: has["nodes"] for name, has in (services or {}).items()}
        """How many workers each program of a job with services has, by node rank."""
        self._coordinator = opened_job(
            total,
            services=tuple(self._services.values()),
            programs=self._offered(0),
            workers=sizes[0],
            nnodes=most,
            fewest_nodes=most if least is None else least,
            spares=spares,
            rejoin_timeout=rejoin,
            check=check,
            max_restarts=restarts,
            no_restart_exit_codes=tuple(final_codes),
            no_fail_fast=no_fail_fast,
            on_hang=OnHang(on_hang),
            shutdown_timeout=grace,
            pdb=debugged,
            hang_timeout=finds_hangs or None,
            suspend_signal=suspend_signal,
            suspend_exit_code=suspend_code,
            **opened,
        )
        self._job = self._coordinator.settings.job
        self._nodes = [Node(0, sizes[0])]
        self._coordinate(job_events.TimePassed(0.0))
        self.began: list[str] = []
        """The effects until all ranks ran."""
        if not alone:
            for rank in range(1, total):
                self.joins(sizes[rank], rank, programs=self._offered(rank))
            self.began = self.settles().new_lines()

    # What happens to ranks.

    def starts(self, *ranks: Worker, warning: str = "") -> Self:
        """Have the programs of ranks begin; ``warning``: how their binding differs."""
        for rank in ranks:
            node, local = self._locate(rank)
            self._handle(node, events.WorkerStarted(local, 100 + local, warning, self.now))
        return self

    def exits(self, *ranks: Worker, code: int = 0, last: str = "", since: float = 0.0) -> Self:
        """Have ranks exit with these last lines; their scripts failed ``since`` seconds ago."""
        return self._end(ranks, outcomes.Exited(code), last, since)

    def dies(
        self,
        *ranks: Worker,
        by: int = signal.SIGKILL,
        last: str = "",
        since: float = 0.0,
        code: int = 0,
    ) -> Self:
        """Have a signal kill ranks; ``code`` is the exit code with which they were about to exit."""
        exit_status = outcomes.Exited(code) if code else outcomes.Killed(by)
        return self._end(ranks, exit_status, last, since)

    def hangs_at_exit(self, *ranks: Worker, since: float = 0.0) -> Self:
        """Have the scripts of ranks fail, but not their processes exit."""
        for rank in ranks:
            node, local = self._locate(rank)
            node.failing.add(local)
            self._handle(node, events.WorkerFailing(local, self.now, since))
        return self

    def cannot_start(self, rank: Worker, step: str, error: str) -> Self:
        """Have a rank end before its program runs."""
        return self._end([rank], outcomes.NotStarted(step, error))

    def is_stopped(self, rank: Worker) -> Self:
        """Stop a rank, as Ctrl-Z does."""
        node, _ = self._locate(rank)
        self._handle(node, events.WorkerStopped(self.now))
        return self

    def output_is_read(self, rank: Worker) -> Self:
        """Read the last lines of a rank that has ended; ``settles`` reads all."""
        node, local = next(
            (each, local)
            for each in self._nodes
            if (local := self._local(each, rank)) in each.unread and local is not None
        )
        node.unread.remove(local)
        self._read(node, local)
        return self

    def lacks_handler(self, number: int, *ranks: Worker) -> Self:
        """Have a signal not be forwarded to ranks, which have no handler for it."""
        locals_ = tuple(self._locate(rank)[1] for rank in ranks)
        self._handle(self._nodes[0], events.SignalNotHandled(number, locals_, self.now))
        return self

    def is_ready(self, *workers: Worker) -> Self:
        """Have service workers become ready."""
        for worker in workers:
            node, local = self._locate(worker)
            self._handle(node, events.WorkerReady(local, self.now))
        return self

    def is_not_ready(self, worker: Worker, why: str = "Connection refused") -> Self:
        """Have the readiness timeout of a service worker pass."""
        node, local = self._locate(worker)
        self._handle(node, events.WorkerNotReady(local, why, self.now))
        return self

    # What happens in a suspension.

    def calls_requested(self, *ranks: int) -> Self:
        """Have ranks call ``suspend.requested`` for the first time."""
        for rank in ranks:
            node, local = self._page(rank)
            self._handle(node, events.RankCalledSuspend(local, self.now))
        return self

    def asked_to_suspend(self, by: str, node: int = 0) -> Self:
        if self._nodes[node].state is None:
            self._nodes[node].up.append(messages.RequestSuspension(by))
        self._handle(self._nodes[node], events.SuspensionRequested(by, self.now))
        return self

    def holds_ranks(self, step: int, node: int = 0) -> Self:
        """Have an agent report its held ranks, the furthest of them before this step."""
        self._handle(self._nodes[node], events.RanksHeld(step, self.now))
        return self

    def saves(self, step: int, *ranks: int) -> Self:
        for rank in ranks:
            node, local = self._page(rank)
            self._handle(node, events.RankSaved(local, 1 + step, self.now))
        return self

    # What happens in a hang.

    def is_idle(self, *nodes: int, seconds: float = 60.0) -> Self:
        """Have no rank of these nodes print or exit for long."""
        self._wait_for_attempt(seconds)
        for node in nodes:
            self._handle(self._nodes[node], events.WorkersIdle(seconds, self.now))
        return self

    def _wait_for_attempt(self, seconds: float) -> None:
        """Wait until this long after the beginning of the attempt."""
        state = self._coordinator.state
        if isinstance(state, Running):
            self._later(max(0.0, state.began + seconds - self.now))

    def moves(self, node: int) -> Self:
        """Have a rank of an idle node print."""
        self._handle(self._nodes[node], events.WorkersIdle(0.0, self.now))
        return self

    def main_threads_block(self, *nodes: int, seconds: float = 60.0) -> Self:
        """Have no main thread of these nodes run for long."""
        self._wait_for_attempt(seconds)
        for node in nodes:
            self._handle(self._nodes[node], events.MainThreadsBlocked(seconds, self.now))
        return self

    def main_threads_run(self, node: int) -> Self:
        """Have a main thread run on a node where none did."""
        self._handle(self._nodes[node], events.MainThreadsBlocked(0.0, self.now))
        return self

    def shows_stack(
        self, *ranks: Worker, at: str, on_screen: bool = False, calls: str = ""
    ) -> Self:
        """Set the function that the stacks of ranks show; "": a rank has no stack.

        A node sends its stacks once all its ranks have one. ``calls``: the file of a function that is
        called there.
        """
        called = f'  File "{calls}", line 9 in barrier\n' if calls else ""
        for rank in ranks:
            node, local = self._locate(rank)
            stack = f'{called}  File "/train.py", line 7 in {at}'
            group = StackGroup((local,), stack) if at else StackGroup((local,), "no handler", False)
            node.stacks[local] = group
            node.on_screen = on_screen
        return self

    # What happens to nodes.

    def signalled(self, number: int, node: int = 0, *, by_parent: bool = False) -> Self:
        """Send a signal to an agent, or to its fork server, which forwards it."""
        got = SignalReceived(number, self.now, to_fork_server=by_parent)
        self._handle(self._nodes[node], got)
        return self

    def asked_to_stop(self, node: int = 0, *, at_once: bool = False) -> Self:
        words = "clusterrun stop --now" if at_once else "clusterrun stop"
        self._handle(self._nodes[node], events.StopRequested(words, at_once, self.now))
        return self

    def output_is_closed(self, node: int = 0) -> Self:
        """Close the reading end of the output."""
        self._handle(self._nodes[node], events.OutputClosed(self.now))
        return self

    def loses_relay(self, node: int = 0) -> Self:
        lost = events.HelperLost("relay", "exited with code 1", 0, self.now)
        self._handle(self._nodes[node], lost)
        return self

    def loses_fork_server(self, node: int = 0) -> Self:
        """Kill the fork server of a node, and with it all ranks there."""
        self._nodes[node].alive.clear()
        lost = events.HelperLost("fork server", "was killed by SIGKILL", signal.SIGKILL, self.now)
        self._handle(self._nodes[node], lost)
        return self

    def fork_server_warns(self, printed: str = "", *refused: str) -> Self:
        """Have a fork server start that has printed this, and lacks these protections."""
        self._handle(self._nodes[0], events.ForkServerReady(printed, refused, self.now))
        return self

    def leaves_processes(self, *names: str, node: int = 0, rank: int | None = None) -> Self:
        """Have ranks of a node start processes with these names, which outlive the ranks."""
        there = self._nodes[node]
        for name in names:
            there.left.append(events.LeftoverProcess(500 + len(there.left), name, rank))
        return self

    def leftovers_end(self, node: int = 0) -> Self:
        """Have all left-over processes of a node end by themselves."""
        self._nodes[node].left.clear()
        if self._nodes[node].awaits_left:
            self._nodes[node].awaits_left = False
            self._handle(self._nodes[node], events.NoLeftovers(self.now))
        return self

    def is_cleaned_up(self, node: int = 0, survivors: Iterable[str] = ()) -> Self:
        """Report that left-over processes of a node were killed, except ``survivors``, as ``settles`` does."""
        self._nodes[node].leftovers = False
        self._handle(self._nodes[node], events.CleanedUp(tuple(survivors), self.now))
        return self

    def is_checked(self, node: int, fault: str = "") -> Self:
        """Have the check of a node end, and find ``fault``."""
        self._handle(self._nodes[node], events.NodeChecked(fault, self.now))
        return self

    def loses_node(self, node: int) -> Self:
        """Kill an agent and all ranks there, which its kernel reports."""
        self._is_killed(node)
        if node == 0:
            self._node_0_runs = False
            self._nodes[node].up.clear()
        else:
            self._gone(node)
        return self

    def loses_host(self, node: int) -> Self:
        """Switch a machine off: its kernel does not respond any more."""
        self._is_killed(node)
        self._gone(node, is_unreachable=True)
        return self

    def loses_connection(self, node: int) -> Self:
        """Reset the connection to an agent that runs and has just got a heartbeat answer."""
        self._nodes[node].is_dropped = True
        self._gone(node, is_dropped=True)
        return self

    def lease_expires(self, node: int) -> Self:
        """Have the fork server of a node kill its ranks because their lease has expired."""
        there = self._nodes[node]
        for local in sorted(there.alive):
            there.alive.discard(local)
            killed = outcomes.Killed(signal.SIGKILL)
            self._handle(there, events.WorkerEnded(local, killed, self.now, by_lease=True))
        return self

    def node_0_was_stopped(self, seconds: float) -> Self:
        """Stop node 0's agent for this long, and continue it before it reads what has arrived."""
        self._coordinate(job_events.NodeZeroWasStopped(seconds, self.now))
        return self

    def reports_failed(
        self, node: int, rank: int, attempt: int | None = None, *, in_report: bool = False
    ) -> Self:
        """Have an agent report a failed rank, which may be another node's or still run.

        It reports it at once, or in the report of the end of all its ranks.
        """
        number = self._coordinator.attempt if attempt is None else attempt
        failed = result_of(rank, 9, host=f"n{node}")
        self._nodes[node].up.append(
            messages.Done(number, (messages.DatedResult(failed, self.now),), None)
            if in_report
            else messages.FirstFailure(number, failed, self.now)
        )
        return self

    def joins(self, workers: int = 1, rank: int | None = None, **says: Any) -> Self:
        """Have another node ask to join; ``says``: fields of its ``Hello``."""
        self._send_hello(self._connect(workers), rank=rank, **says)
        return self

    def queries_ranks(self, node: int = 0, *, rank: int | None = None) -> Self:
        """Have a user of a node query the state of all ranks, or of one."""
        self._nodes[node].queries += 1
        query = queries.Query(self._nodes[node].queries, queries.Topic.RANKS, 1.2, rank)
        self._coordinate(job_events.MessageReceived(node, query, self.now))
        return self

    def answers(self, node: int, query: int) -> Self:
        """Have a node answer the query with this number, whether it was asked or not."""
        self._answer(self._nodes[node], query, answers.NodeRanks(10, 0, "running", ()))
        return self

    def _answer(self, node: Node, query: int, body: Struct) -> None:
        encoded = msgspec.msgpack.encode(body)
        node.up.append(queries.Answer(query, node.number, f"n{node.number}", encoded))

    def nccl_answers(self, *lines: str, behind: tuple[int, ...] = (), counts: str = "") -> Self:
        """Set what NCCL answers from now on; such queries are not among the effects."""
        self._nccl = state = nccl.NcclState(lines, behind, counts)
        for node, number in self._slow_queries:
            self._answer(node, number, state)
        return self

    def nccl_is_slow(self) -> Self:
        """Delay all answers of NCCL until ``nccl_answers``."""
        self._nccl = None
        return self

    def goes_silent(self, node: int) -> Self:
        """Freeze an agent with its ranks until node 0 finds it silent."""
        self._nodes[node].is_frozen = True
        self._coordinate(job_events.MemberSilent(node, self.now))
        return self

    def freezes(self, node: int) -> Self:
        """Freeze an agent with its ranks; node 0 has not noticed it yet."""
        self._nodes[node].is_frozen = True
        return self

    def is_cut_off(self, node: int) -> Self:
        """Cut a node off: its agent finds node 0 silent, and then node 0 finds it silent."""
        lost = self._nodes[node]
        lost.up.clear()
        lost.down.clear()
        self._lose_node_0(lost, "has been silent for 17 s", is_silent=True)
        self._coordinate(job_events.MemberSilent(node, self.now))
        return self

    def gets_old_orders(self, node: int) -> Self:
        """Deliver the orders for earlier attempts to a node once more."""
        agent = self._nodes[node]
        for order in agent.orders:
            if agent.state and order.attempt < agent.state.number:
                self._handle(agent, events.CoordinatorSent(order, self.now))
        return self

    def continues(self, node: int) -> Self:
        """Let a frozen node continue."""
        self._nodes[node].is_frozen = False
        return self

    def is_declared_lost(self, node: int) -> Self:
        """Tell a node that it was declared lost, and that the job continues."""
        self._receive(self._nodes[node], messages.GivenUp("has been silent for 18 s"))
        return self

    def gets_orders(self, attempt: int, node: int = 0) -> Self:
        """Send a node all orders that have an attempt number, with this one."""
        of_services = (
            messages.ServicesReady(attempt, tuple(self._services)),
            messages.EndServices(attempt),
        )
        for order in (
            *(of_services if self._services else ()),
            messages.HoldRanks(attempt),
            messages.SaveAt(attempt, 5),
            messages.CancelSuspension(attempt),
            messages.Stop(attempt, "rank 9 on n9 failed"),
        ):
            self._receive(self._nodes[node], order)
        return self

    def restarts_too_early(self) -> Self:
        """Order node 0 to check itself and to begin the next attempt, while ranks run."""
        next_attempt = messages.NextAttempt(world_of(1, attempt=1), outcomes.NodeLost(1, "n1"))
        for order in (messages.CheckNode(), next_attempt):
            self._receive(self._nodes[0], order)
        return self

    # What follows.

    def time_passes(self, seconds: float) -> Self:
        """Let time pass, and handle what is due by then."""
        self._later(seconds)
        for node in self._nodes:
            if node.deadline is not None and node.deadline <= self.now and not node.is_frozen:
                node.deadline = None
                self._handle(node, events.DeadlinePassed(self.now))
        if self._node_0_runs and self._coordinator.due <= self.now:
            self._coordinate(job_events.TimePassed(self.now))
        return self

    def next_due(self) -> float:
        """Return the seconds until something is due."""
        agents = (node for node in self._nodes if not (node.is_over or node.is_frozen))
        times = [node.deadline for node in agents if node.deadline is not None]
        if self._node_0_runs:
            times.append(self._coordinator.due)
        return max(0.0, min(times, default=0.0) - self.now)

    def ranks_of_world(self) -> int:
        """Return the number of ranks of the attempt that node 0 has begun."""
        return sum(each.hello.workers for each in self._coordinator.members.participants)

    def delivers_from(self, node: int) -> Self:
        """Deliver one message of a node to node 0, if one is in transit."""
        there = self._nodes[node]
        if there.up and self._node_0_runs and not there.is_dropped:
            self._deliver_up(there)
        return self

    def delivers_to(self, node: int) -> Self:
        """Deliver one message to a node, or the end of its connection."""
        there = self._nodes[node]
        sent, there.up = there.up, deque()
        self._deliver(there)
        there.up.extendleft(reversed(sent))
        return self

    def steps(self, node: int) -> Self:
        """Do one thing on a node: deliver a message, read output, clean up."""
        self._step(self._nodes[node])
        return self

    def settles(self) -> Self:
        """Deliver every message, read all output, and clean up, until nothing is left to do."""
        while any(self._step(node) for node in self._nodes if not node.is_frozen):
            self._later(0.01)
        return self

    def delivers_all(self) -> Self:
        """Deliver every message, but do not read output or clean up."""
        while any(self._deliver(node) for node in self._nodes if not node.is_frozen):
            self._later(0.01)
        return self

    def running(self, node: int) -> list[int]:
        """Return the ranks that run on a node, then the numbers of services' workers."""
        there = self._nodes[node]
        return [self._number_of(there.names[local]) for local in sorted(there.alive)]

    def new_lines(self) -> list[str]:
        """Return the effects since the last call, one line each."""
        seen, self._lines = self._lines, []
        return seen

    def restarted(self, node: int = 0) -> str:
        """Return what a node reported at the last restart."""
        return self._nodes[node].restarted

    def master_address(self, node: int = 0) -> str:
        """Return the master address and port of a node's ranks."""
        world = self._nodes[node].world
        assert world is not None
        return f"{world.master_addr}:{world.master_port}"

    def report(self, node: int = 0) -> list[str]:
        """Return a node's report about its ranks, in order, and about what could not be killed."""
        outcome = self._nodes[node].outcome
        assert outcome is not None, f"node {node} has not ended"
        return [
            *map(_result_text, outcome.results),
            *([f"{outcome.failure.worker} had failed before"] if outcome.failure else ()),
            *(f"still left: {survivor}" for survivor in outcome.survivors),
        ]

    # Calls of the policy, and its actions.

    def _later(self, seconds: float) -> None:
        # Sums of tenths are exact: what is due after 25 s is due after 24.9 s and 0.1 s.
        self.now = round(self.now + seconds, 6)

    def _connect(self, workers: int) -> Node:
        self._nodes.append(Node(len(self._nodes), workers))
        self._coordinate(job_events.CallerConnected(self.now))
        return self._nodes[-1]

    def _send_hello(self, node: Node, at: str = "", **says: Any) -> None:
        """Send a node's ``Hello``; ``at``: its address, else the one of its host."""
        usual = {"workers": node.size, "must": self._coordinator.own_hello.must}
        said = hello(node.number, **{**usual, **says})
        address = at or f"10.0.0.{said.host.removeprefix('n')}"
        got = job_events.HelloReceived(node.number, address, said, self.now)
        self._coordinate(got)

    def _offered(self, rank: int) -> tuple[messages.ProgramOffer, ...]:
        """Return the programs that a node offers in a job with services."""
        return tuple(
            messages.ProgramOffer(name, tuple(range(40000, 40000 + placed[rank])), 50000)
            for name, placed in self._sizes.items()
            if placed.get(rank)
        )

    def _name_of(self, worker: Worker) -> Name:
        if isinstance(worker, str):
            service, _, number = worker.partition(" ")
            return service, int(number)
        rank = worker
        for name, placed in self._sizes.items():
            if rank < sum(placed.values()):
                return "" if name == MAIN else name, rank
            rank -= sum(placed.values())
        return "", worker

    def _number_of(self, name: Name) -> int:
        service, rank = name
        if not service:
            return rank
        programs = list(self._sizes)
        before = programs[: programs.index(service)]
        return rank + sum(sum(self._sizes[each].values()) for each in before)

    def _local(self, node: Node, worker: Worker) -> LocalRank | None:
        """Return the local rank of a worker on a node; None if it is not there."""
        name = self._name_of(worker)
        return LocalRank(node.names.index(name)) if name in node.names else None

    def _locate(self, rank: Worker) -> tuple[Node, LocalRank]:
        # A lost node's rank may still run beside the one in its place.
        for node in sorted(self._nodes, key=lambda node: (node.is_frozen, -node.attempt)):
            local = self._local(node, rank)
            if local is not None and local in node.alive:
                return node, local
        raise AssertionError(f"rank {rank} is not running")

    def _page(self, rank: int) -> tuple[Node, LocalRank]:
        """Return the node and local rank of a rank that may have ended."""
        for node in self._nodes:
            local = self._local(node, rank)
            if node.state and not node.is_over and local is not None:
                return node, local
        raise AssertionError(f"no agent looks at what rank {rank} does")

    def _end(
        self,
        ranks: Iterable[Worker],
        exit_status: outcomes.ExitStatus,
        last: str = "",
        since: float = 0.0,
    ) -> Self:
        for rank in ranks:
            node, local = self._locate(rank)
            node.alive.discard(local)
            node.failing.discard(local)
            node.last_lines[local] = last
            self._handle(node, events.WorkerEnded(local, exit_status, self.now, since))
        return self

    def _read(self, node: Node, local: LocalRank) -> None:
        tail = node.last_lines.pop(local, "")
        self._handle(node, events.OutputEnded(local, tail, "", self.now))

    def _is_killed(self, node: int) -> None:
        self._nodes[node].is_over = True
        self._nodes[node].alive.clear()

    def _grant_lease(self, node: int) -> None:
        """Answer an agent's heartbeat, which renews its lease."""
        if not self._coordinator.is_lost(node):
            self._coordinator.grants.answer(node, self.now)

    def _gone(self, node: int, *, is_unreachable: bool = False, is_dropped: bool = False) -> None:
        self._grant_lease(node)
        has_ended = not (is_unreachable or is_dropped)
        gone = job_events.MemberDisconnected(node, "", self.now, has_ended, is_unreachable)
        self._coordinate(gone)

    def _start(self, node: Node) -> None:
        """Begin the attempt of its world."""
        self.is_ending = False
        assert node.world is not None
        attempt, first = node.world.attempt, node.world.first_rank
        node.first, node.attempt = first, attempt
        node.deadline, node.leftovers, node.wanted = None, False, None
        node.left, node.awaits_left = [], False
        node.failing = set()
        before = node.state.suspending if node.state else SuspensionOnNode(node.may_suspend)
        known = plan_of(node.size, first_rank=first)
        node.names = (*(("", each.rank) for each in known.workers), *self._of_services(node.world))
        workers = [replace(each, runs_python=not self._groups) for each in known.workers]
        for local, name in enumerate(node.names[len(workers) :], len(workers)):
            service, rank = name
            own = worker_of(
                local,
                rank=GlobalRank(self._number_of(name)),
                service=self._services[service],
                env={"ROLE_RANK": str(rank)},
                runs_python=False,
            )
            workers.append(own)
        plan = replace(known, world=node.world, host=f"n{node.number}", workers=tuple(workers))
        node.state = Attempt(self._job, plan, foreground=self._terminal, before=before)
        ranks = node.state.starting
        node.alive = set(ranks)
        self._record(
            node, f"starts {_workers_text(node, ranks) or 'nothing yet'}, attempt {attempt}"
        )
        self._start_programs(node, ranks)

    def _of_services(self, world: World) -> list[Name]:
        """Return the workers of services on a node, in their order."""
        return [
            (program.name, program.position_on(world.node_rank)[1] + index)
            for program in world.programs[1:]
            for each in program.nodes
            if each.node_rank == world.node_rank
            for index in range(each.workers)
        ]

    def _start_programs(self, node: Node, ranks: Iterable[LocalRank]) -> None:
        for local in sorted(ranks):
            if node.attempt or self._number_of(node.names[local]) not in self._starting:
                self._handle(node, events.WorkerStarted(local, 100 + local, "", self.now))

    def _record(self, node: Node, what: str) -> None:
        self._lines.append(f"node {node.number} {what}")

    def _handle(self, node: Node, event: events.Event) -> None:
        if node.is_over or node.state is None:
            return
        decided = node.state.handle(event)
        for action in decided:
            self._perform(node, node.state, action)

    def _perform(self, node: Node, state: Attempt, action: actions.Action) -> None:
        if effect := _effect(node, action):
            self._record(node, effect)
        match action:
            case actions.SetDeadline(seconds):
                node.deadline = round(self.now + seconds, 6)
            case actions.CollectOutput(local):
                node.unread.append(local)
            case (
                actions.CleanUp()
                | actions.KillLeftovers()
                | actions.AwaitLeftovers()
                | actions.NameLeftovers()
            ):
                self._leftover_action(node, action)
            case actions.CollectStacks():
                node.wanted = 0
            case actions.StartWorkers() | actions.RestartWorker():
                self._start_workers(node, action)
            case actions.ExpectNoStacks(locals_):
                self.shows_stack(*(self._number_of(node.names[local]) for local in locals_), at="")
            case actions.SendToCoordinator(message):
                node.up.append(message)
            case actions.ReportFailure(local):
                result = next(each for each in self._results(node) if each.local_rank == local)
                at = state.ended[local].failed_at
                node.up.append(messages.FirstFailure(state.number, result, at))
            case actions.ReportExits(locals_):
                exits = (
                    messages.DatedExit(state.plan.numbers[it], state.ended[it].at) for it in locals_
                )
                node.up.append(messages.RanksExited(state.number, tuple(exits)))
            case actions.ReportEnd():
                results = tuple(messages.DatedResult(it, it.clock) for it in self._results(node))
                cause, lease_expired = state.external_cause, state.lease_expired
                node.up.append(messages.Done(state.number, results, cause, lease_expired))
            case actions.Pause():
                node.up.append(messages.Paused(paused=True))
            case actions.Resume():
                node.up.append(messages.Paused(paused=False))
            case actions.Restart() | actions.Rejoin() | actions.Finish():
                self._end_attempt(node, state, action)

    def _end_attempt(
        self, node: Node, state: Attempt, how: actions.Restart | actions.Rejoin | actions.Finish
    ) -> None:
        match how:
            case actions.Restart():
                assert isinstance(state.answer, messages.NextAttempt)
                node.restarted = _restart_text(state.answer.reason, state.answer.progress)
                self._start(node)
            case actions.Rejoin():
                node.is_over = True
                self._record(node, "joins again")
            case actions.Finish():
                node.is_over = True
                node.outcome = conclude(state, self._results(node))
                self._record(node, _outcome_text(node.outcome))

    def _start_workers(
        self, node: Node, action: actions.StartWorkers | actions.RestartWorker
    ) -> None:
        if isinstance(action, actions.RestartWorker):
            started = frozenset({action.local_rank})
        else:
            started = action.local_ranks
        node.alive |= started
        self._start_programs(node, started)

    def _leftover_action(
        self,
        node: Node,
        action: actions.CleanUp
        | actions.KillLeftovers
        | actions.AwaitLeftovers
        | actions.NameLeftovers,
    ) -> None:
        match action:
            case actions.CleanUp():
                # That nothing is left may be on its way.
                node.leftovers, node.left = True, []
            case actions.KillLeftovers(locals_):
                ended = {self._number_of(node.names[local]) for local in locals_}
                node.left = [each for each in node.left if each.rank not in ended]
            case actions.AwaitLeftovers():
                node.awaits_left = True
            case actions.NameLeftovers():
                node.named.append(events.LeftoversNamed(tuple(node.left), self.now))

    def _results(self, node: Node) -> tuple[outcomes.WorkerResult, ...]:
        assert node.state is not None
        return results_of(node.state, {}, {}, 0.0)

    def _coordinate(self, event: job_events.CoordinatorEvent) -> None:
        replies = self._coordinator.handle(event)
        for reply in replies:
            match reply:
                case job_events.Send(numbers, message):
                    self.is_ending = self.is_ending or isinstance(message, messages.Stop)
                    if isinstance(message, messages.GivenUp):
                        self.declared_lost.update(numbers)
                    for number in numbers:
                        if not self._nodes[number].is_cut_off:
                            self._nodes[number].down.append(message)
                case job_events.PrintOnNodeZero(text):
                    self._record(self._nodes[0], f"prints: {text}")
                case job_events.StopListening():
                    assert not self._nodes[0].down, "a rank may start before its port is free"
                    self._record(self._nodes[0], "closes the port")
                case job_events.PreparePort():
                    self.further_attempts += 1
                    self._coordinate(job_events.PortReady(self.port, self.now))
        # A connection is closed once all that was sent has left.
        for reply in replies:
            if isinstance(reply, job_events.Disconnect):
                for number in reply.connections:
                    if not (self._nodes[number].is_over or self._nodes[number].is_dropped):
                        self.loses_connection(number)

    def _step(self, node: Node) -> bool:
        """Do one thing that is due on a node; return whether there was one."""
        if self._deliver(node):
            return True
        if node.unread and not node.is_over:
            self._read(node, node.unread.pop(0))
            return True
        if node.named and not node.is_over:
            self._handle(node, node.named.popleft())
            return True
        if node.awaits_left and not (node.left or node.is_over):
            self.leftovers_end(node.number)
            return True
        if node.leftovers and not node.is_over:
            node.leftovers = False
            self._handle(node, events.CleanedUp((), self.now))
            return True
        return self._send_stacks(node)

    def _send_stacks(self, node: Node) -> bool:
        """Send the stacks of a node if all its ranks have shown theirs; return whether it does."""
        if node.wanted is None or not node.alive <= node.stacks.keys():
            return False
        if node.state is None:
            return False
        stacks = (group for local, group in node.stacks.items() if local in node.alive)
        shown = node.state.stacks_by_rank(stacks)
        number, node.wanted, node.stacks = node.wanted, None, {}
        if number:
            self._answer(node, number, answers.NodeStacks(shown, node.on_screen))
        else:
            self._handle(node, events.StacksCollected(shown, self.now))
        return True

    def _deliver(self, node: Node) -> bool:
        """Deliver a message from or to a node; return whether there was one."""
        if node.up and self._node_0_runs and not node.is_dropped:
            self._deliver_up(node)
        elif node.is_over:
            return False
        elif node.down:
            self._receive(node, node.down.popleft())
        elif (node.is_dropped or not self._node_0_runs) and not node.is_cut_off:
            self._lose_node_0(node, "is gone")
        else:
            return False
        return True

    def _lose_node_0(self, node: Node, how: str, *, is_silent: bool = False) -> None:
        node.is_cut_off = True
        if node.state is None:
            node.is_over = True
            self._record(node, "is disconnected")
        at_once = is_silent and self._job.survives_node_loss
        lost = outcomes.NodeLost(0, node.leader, how)
        self._handle(node, events.CoordinatorLost(lost, self.now, at_once))

    def _deliver_up(self, node: Node) -> None:
        message = node.up.popleft()
        self._coordinate(job_events.MessageReceived(node.number, message, self.now))

    def _receive(self, node: Node, message: messages.FromCoordinator) -> None:
        match message:
            case messages.NextAttempt(world):
                node.world = world
            case messages.WorldFormed(world, host):
                node.world, node.leader = world, host
                self._start(node)
            case messages.KeepWaiting():
                self._record(node, "waits for a place")
            case messages.SuspensionPossible() if node.state is None:
                node.may_suspend = True
                self._record(node, "will take SIGTERM for a request to suspend")
            case messages.Paused(paused):
                self._record(node, f"{'bears' if paused else 'no longer bears'} node 0's silence")
            case messages.Refused(refusal, text, hint):
                node.is_over = True
                advice = f" ({' '.join(hint.splitlines())})" if hint else ""
                self._record(node, f"{ANSWERS[refusal]}{text}{advice}")
            case messages.GivenUp() if node.state is None:
                node.is_over = True
                self._record(node, "joins again")
            case messages.Verdict() if node.state is None:
                node.is_over = True
                self._record(node, "ends without having had a place")
            case messages.Notice(text):
                self._record(node, f"prints: {text}")
            case queries.Query() | queries.Answer() | queries.EndOfAnswers():
                self._query_message(node, message)
            case messages.PrintStacks(text):
                lines = " | ".join(line.strip() for line in text.splitlines())
                self._record(node, f"shows stacks: {lines}")
        # Who has the verdict closes the connection; node 0's own agent has none.
        is_last = isinstance(message, messages.Verdict | messages.GivenUp)
        node.is_cut_off |= is_last and node.number > 0
        if isinstance(message, messages.Order):
            if isinstance(message, AttemptOrder):
                node.orders.append(message)
            self._handle(node, events.CoordinatorSent(message, self.now))

    def _query_message(
        self, node: Node, message: queries.Query | queries.Answer | queries.EndOfAnswers
    ) -> None:
        match message:
            case queries.Query(number, queries.Topic.STACKS):
                self._record(node, "asks its ranks for their stacks")
                node.wanted = number
                if not node.alive:
                    self._send_stacks(node)
            case queries.Query(number, queries.Topic.NCCL):
                if self._nccl is None:
                    self._slow_queries.append((node, number))
                else:
                    self._answer(node, number, self._nccl)
            case queries.Query(number):
                self._record(node, "answers a query")
                self.answers(node.number, number)
            case queries.Answer(number, answering):
                self._record(node, f"gets node {answering}'s answer to its query {number}")
            case queries.EndOfAnswers(number, missing, _, waiting, suspension):
                those = queries.missing_nodes(missing)
                others = (*those, *(f"{host} waits for a place" for host in waiting), suspension)
                known = "; ".join(filter(None, others)) or "no node is missing"
                self._record(node, f"has all answers to its query {number}: {known}")


def _service(
    name: str,
    nodes: Mapping[int, int],
    *,
    ready: bool = False,
    timeout: float = 600.0,
    on_failure: str = "stop",
    **has: Any,
) -> Service:
    return Service(
        name=name,
        where="job.yaml:2",
        program=WorkerProgram(ProgramKind.EXECUTABLE, name, ()),
        nproc_per_node=max(nodes.values()),
        ready="/health" if ready else "",
        ready_timeout=timeout,
        on_failure=OnFailure(on_failure),
        **has,
    )


def is_aside(message: object) -> bool:
    """Return whether a message does not affect a suspension: a line, or a rank's first call."""
    return isinstance(message, messages.Notice | messages.RankCallsSuspend)


def _effect(node: Node, action: actions.Action) -> str:
    """Return the immediate effect of an action; "": none."""
    match action:
        case actions.SignalWorkers(local_ranks, number, group, except_failing):
            assert local_ranks <= node.alive, "signals a rank that has ended"
            local_ranks -= node.failing if except_failing else set()
            groups = " and all they started" if group else ""
            if not local_ranks:
                return ""
            return f"sends {_name(number)} to {_workers_text(node, local_ranks)}{groups}"
        case actions.StartWorkers(local_ranks):
            return f"starts {_workers_text(node, local_ranks)}"
        case actions.RestartWorker(local):
            return f"starts {_workers_text(node, [local])} again"
        case actions.ProbeReadiness(local):
            return f"asks whether {_workers_text(node, [local])} is ready"
        case actions.ForwardSignal(number):
            return f"passes {_name(number)} on to ranks that handle it"
        case actions.PrintNotice(text):
            return f"prints: {text}"
        case actions.KillLeftovers(local_ranks):
            return f"kills what is left of {_workers_text(node, local_ranks)}"
        case actions.CleanUp() | actions.AwaitLeftovers() | actions.SignalLeftovers():
            return f"{_leftover_verb(action)} what its ranks have left"
        case actions.ReleaseRanks(mark):
            return f"lets its ranks go on{f', to save at step {mark - 1}' if mark else ''}"
        case _:
            return EFFECTS.get(type(action), "")


def _leftover_verb(
    action: actions.CleanUp | actions.AwaitLeftovers | actions.SignalLeftovers,
) -> str:
    match action:
        case actions.CleanUp():
            return "kills"
        case actions.AwaitLeftovers():
            return "waits for"
        case actions.SignalLeftovers(number):
            return f"sends {_name(number)} to"


def _workers_text(node: Node, local_ranks: Iterable[LocalRank]) -> str:
    """Return "ranks 0-3, server rank 2"; "" for none."""
    found: dict[str, list[int]] = {}
    for local in sorted(local_ranks):
        service, rank = node.names[local]
        found.setdefault(f"{service} " if service else "", []).append(rank)
    return ", ".join(f"{service}{_ranks_text(ranks)}" for service, ranks in found.items())


def _ranks_text(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {','.join(number_ranges(ranks))}"


def _name(number: int) -> str:
    known = signal.Signals._value2member_map_
    return signal.Signals(number).name if number in known else f"signal {number}"


def _result_text(result: outcomes.WorkerResult) -> str:
    match result.exit_status:
        case outcomes.Exited(code):
            how = f"exited with {code}"
        case outcomes.Killed(number):
            how = f"was killed by {_name(number)}"
        case outcomes.NotStarted(step, error):
            how = f"did not start: {step}: {error}"
        case outcomes.EndedEarly():
            how = "exited with 0 before the others"
        case outcomes.NotReady(seconds, why):
            how = f"was not ready within {seconds:g} s: {why}:"
    stopped = ", as it was asked to end" if result.stopped_by_us else ""
    hung = f", hung in {result.hung.splitlines()[-1].strip()}" if result.hung else ""
    return f"{result.worker} {how} after {result.ran_for:.0f} s{stopped}{hung}"


def _outcome_text(outcome: outcomes.Outcome) -> str:
    rather = f" (no restart: {outcome.no_restart})" if outcome.no_restart else ""
    return f"ends with {outcome.exit_code}: {_reason_text(outcome.reason)}{rather}"


def _restart_text(reason: outcomes.Reason, progress: outcomes.RestartProgress) -> str:
    counts = f"restarts: {progress.restarts}, lost nodes: {progress.losses}"
    nodes = f", nodes: {progress.nodes}" if progress.nodes else ""
    places = (
        f"; node {each.lost.node_rank} ({each.lost.host}) {each.lost.how}:"
        f" {each.host or 'nobody'} has its place"
        for each in progress.replacements
    )
    return f"{_reason_text(reason)}; {counts}{nodes}{''.join(places)}"


def _earlier_exits_text(exits: outcomes.EarlierExits | None) -> str:
    """Return how long after the clean exits of peers a rank failed."""
    if exits is None:
        return ""
    others = f" and {exits.more} others" if exits.more else ""
    return f" {exits.seconds:.1f} s after {_ranks_text(exits.ranks)}{others} exited with 0"


def _reason_text(reason: outcomes.Reason) -> str:
    match reason:
        case outcomes.Succeeded():
            return "all ranks have succeeded"
        case outcomes.WorkerFailed(cause, fails_check, earlier):
            unfit = ", and its node is unfit" if fails_check else ""
            return f"{cause.worker} failed{_earlier_exits_text(earlier)}{unfit}"
        case outcomes.Interrupted(number):
            return f"it got {_name(number)}"
        case outcomes.OutputGone():
            return "nobody reads its output"
        case outcomes.HelperFailed(name, how):
            return f"its {name} {how}"
        case outcomes.NodeLost(node_rank, _, how):
            return f"node {node_rank} {how}"
        case outcomes.Hung(seconds, ranks, sign=sign):
            waits = f", and the others wait for {_ranks_text(ranks)}" if ranks else ""
            moving = {"silent": "rank", "still": "main thread", "behind": "collective"}
            what = moving[sign.value]
            return f"no {what} has moved for {seconds:.0f} s{waits}"
        case outcomes.Suspended(by, step, _, _, silent):
            all_ = f"all but {_ranks_text(silent)}" if silent else "all"
            return f"{all_} saved at step {step}, as {by} asked"
        case outcomes.NotSuspended(by, step, _, unsaved, silent, given_up):
            when = " when a second command came" if given_up else ""
            late = _ranks_text((*unsaved, *silent)) if unsaved or silent else "ranks"
            if step is None:
                return f"the node of {late} did not answer, as {by} asked"
            return f"{late} did not save at step {step}{when}, as {by} asked"
        case _:
            raise AssertionError(f"no words for {reason}")
