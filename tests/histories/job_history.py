"""A job as its user sees it, without a process: what happens to ranks and nodes, and what follows.

A history is a list of happenings in the words of docs/index.md. What follows is text, a line for
each effect on the world outside of the policy: a signal to ranks, a line on the terminal, a start, an
end. So a history names no module, class or message of the product. The only file that does is this
one: when the policy is written anew, it is, and no history.
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
from clusterrun.policy.node import Attempt
from clusterrun.policy.results import conclude, results_of
from clusterrun.policy.stacks import StackGroup
from clusterrun.signals import SignalReceived
from msgspec import Struct
from msgspec.structs import replace

from tests.network.nodes import hello, opened_job
from tests.network.nodes import result as fate_of
from tests.plans import plan_of, worker_of
from tests.plans import world as world_of


def refused(kind: str) -> str:
    """Return the line on node 1 that has sent a message of this kind which no agent sends."""
    what = f"it sent a message that has no place here ({kind})"
    return f"node 0 prints: refused n1 (pid 11) at 10.0.0.1: {what}"


AttemptOrder = messages.Stop | messages.HoldRanks | messages.SaveAt | messages.CancelSuspension

GRACE = 25.0
"""Seconds."""

Worker = int | str
"""A rank; a worker of a service by its name, "server 0", or by its number in the job."""

Name = tuple[str, int]
"""Of a worker: its service, "" for the main program, and its rank in that."""

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
"""What others see of actions that have no arguments."""


class Node:
    """An agent, its ranks, and the messages that were sent and not delivered."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size, self.first, self.attempt = number, size, 0, 0
        self.state: Attempt | None = None
        """None: it has no place yet."""
        self.up: deque[messages.AgentMessage] = deque()
        self.down: deque[messages.FromCoordinator] = deque()
        self.names: Sequence[Name] = ()
        """Of its workers, by local rank."""
        self.alive: set[LocalRank] = set()
        self.unread: list[LocalRank] = []
        """Ranks that have ended, and whose last lines are not known yet."""
        self.last_lines: dict[LocalRank, str] = {}
        self.leftovers = self.is_over = self.is_frozen = self.is_cut_off = False
        self.left: list[events.LeftoverProcess] = []
        """Processes that ranks have started, and that run when these have ended."""
        self.awaits_left = False
        self.named: deque[events.Left] = deque()
        """Their names, which have not come yet."""
        self.is_dropped = False
        """Node 0 has closed the connection, or the network has."""
        self.failing: set[LocalRank] = set()
        """Ranks whose scripts have failed, and whose processes run."""
        self.wanted: int | None = None
        """The query for which its ranks were asked for their stacks; 0: their agent's own."""
        self.stacks: dict[LocalRank, StackGroup] = {}
        self.on_screen = False
        """Its one rank has printed its stack itself."""
        self.outcome: outcomes.Outcome | None = None
        self.deadline: float | None = None
        self.world: World | None = None
        """The world of its attempt, or of the next one that it has been given."""
        self.orders: list[AttemptOrder] = []
        """All that it was given."""
        self.may_suspend = False
        """It was told so before it had a place."""
        self.leader = "n0"
        """The host of node 0."""
        self.queries = 0
        """How often a user of this node has asked about the job."""
        self.restarted = ""


class Job:
    """All nodes of a job whose ranks run, and what has followed since then."""

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
            nodes: the number of those that work.
            workers: the number of ranks on each node, or of each.
            restarts: how often all ranks are started again after a failure.
            spares: the number of nodes that wait.
            least: with fewer nodes the job ends; None: the number of nodes never changes.
            most: the highest number of nodes, if ``least`` is given; None: ``nodes``.
            rejoin: seconds for which a job waits for another node in a lost one's place.
            check: nodes run this command before they join, and after a failure.
            final_codes: exit codes after which no other attempt follows.
            no_fail_fast: the same failure twice in a row does not end the job.
            terminal: the one rank has the terminal.
            groups: the ranks are no Python programs: a signal goes to their groups.
            grace: the grace period in seconds.
            starting: workers of the first attempt whose programs do not run yet, by number.
            debugged: a debugger is attached to the ranks.
            on_hang: what follows when no rank moves: "report", "restart" or "stop".
            finds_hangs: seconds after which a job hangs; agents say when they begin to watch.
            suspend_signal: asks for a suspension, and is not passed on.
            suspend_code: the exit code of a job that was suspended.
            alone: only node 0 has joined at first; else all have, and their ranks run.
            services: by name; each has ``nodes``, its workers by node rank, and may have ``ready``
                (it is asked whether it is), ``timeout`` (until when it must be), ``after`` (services),
                ``must_finish``, ``world`` and ``on_failure`` ("restart", "ignore").
            opened: of how nodes join; see ``join_history``.

        """
        self.now = 0.0
        self._nccl = nccl.NcclState()
        self._seen: list[str] = []
        self.port = 29500
        """Where the ranks of the next attempt meet."""
        most = nodes if least is None else most or nodes
        self._terminal, self._groups, self._starting = terminal, groups, frozenset(starting)
        self._is_led = True
        """Node 0's agent, which has the coordinator, lives."""
        self.further_attempts = 0
        """How many other attempts have begun."""
        self.is_ending = False
        """The ranks of all nodes have been ordered to stop, and no other attempt has begun."""
        total = nodes + spares
        sizes = [workers] * total if isinstance(workers, int) else workers
        self._services = {name: _service(name, **has) for name, has in (services or {}).items()}
        self._placed = {MAIN: dict(enumerate(sizes))} if services else {}
        self._placed |= {name: has["nodes"] for name, has in (services or {}).items()}
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
        self._asked_for = self._coordinator.settings.job
        self._nodes = [Node(0, sizes[0])]
        self._decided(job_events.TimePassed(0.0))
        self.began: list[str] = []
        """What followed until all ranks ran."""
        if not alone:
            for rank in range(1, total):
                self.joins(sizes[rank], rank, programs=self._offered(rank))
            self.began = self.settles().saw()

    # What happens to ranks.

    def starts(self, *ranks: Worker, remark: str = "") -> Self:
        """Have the programs of ranks begin; ``remark`` says how their binding differs."""
        for rank in ranks:
            node, local = self._place(rank)
            self._happens(node, events.WorkerStarted(local, 100 + local, remark, self.now))
        return self

    def exits(self, *ranks: Worker, code: int = 0, last: str = "", since: float = 0.0) -> Self:
        """Have ranks exit, whose last lines are ``last``, and whose scripts failed ``since`` seconds ago."""
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
        """Have the scripts of ranks fail, whose processes do not exit."""
        for rank in ranks:
            node, local = self._place(rank)
            node.failing.add(local)
            self._happens(node, events.WorkerFailing(local, self.now, since))
        return self

    def cannot_start(self, rank: Worker, step: str, error: str) -> Self:
        """Have a rank end before its program runs."""
        return self._end([rank], outcomes.NotStarted(step, error))

    def is_stopped(self, rank: Worker) -> Self:
        """Stop a rank, as Ctrl-Z does."""
        node, _ = self._place(rank)
        self._happens(node, events.WorkerStopped(self.now))
        return self

    def is_read(self, rank: Worker) -> Self:
        """Read the last lines of a rank that has ended; ``settles`` reads all."""
        node, local = next(
            (each, local)
            for each in self._nodes
            if (local := self._local(each, rank)) in each.unread and local is not None
        )
        node.unread.remove(local)
        self._read(node, local)
        return self

    def handles_not(self, number: int, *ranks: Worker) -> Self:
        """Have a forwarded signal find ranks without a handler for it."""
        locals_ = tuple(self._place(rank)[1] for rank in ranks)
        self._happens(self._nodes[0], events.SignalNotHandled(number, locals_, self.now))
        return self

    def is_ready(self, *workers: Worker) -> Self:
        """Have workers of services answer that they are ready."""
        for worker in workers:
            node, local = self._place(worker)
            self._happens(node, events.WorkerReady(local, self.now))
        return self

    def is_not_ready(self, worker: Worker, why: str = "Connection refused") -> Self:
        """Have the time pass that a worker of a service has to become ready."""
        node, local = self._place(worker)
        self._happens(node, events.WorkerNotReady(local, why, self.now))
        return self

    # What happens in a suspension.

    def asks(self, *ranks: int) -> Self:
        """Have agents see that ranks have asked, for the first time, whether they should save."""
        for rank in ranks:
            node, local = self._page(rank)
            self._happens(node, events.RankCalledSuspend(local, self.now))
        return self

    def asked_to_suspend(self, by: str, node: int = 0) -> Self:
        if self._nodes[node].state is None:
            self._nodes[node].up.append(messages.RequestSuspension(by))
        self._happens(self._nodes[node], events.SuspensionRequested(by, self.now))
        return self

    def is_held(self, step: int, node: int = 0) -> Self:
        """Have the held ranks of a node wait, the furthest before this step."""
        self._happens(self._nodes[node], events.RanksHeld(step, self.now))
        return self

    def saves(self, step: int, *ranks: int) -> Self:
        for rank in ranks:
            node, local = self._page(rank)
            self._happens(node, events.RankSaved(local, 1 + step, self.now))
        return self

    # What happens in a hang.

    def stands_still(self, *nodes: int, seconds: float = 60.0) -> Self:
        """Have no rank of these nodes print or exit for long."""
        self._runs_for(seconds)
        for node in nodes:
            self._happens(self._nodes[node], events.WorkersIdle(seconds, self.now))
        return self

    def _runs_for(self, seconds: float) -> None:
        """Let so much time pass since the attempt began."""
        state = self._coordinator.state
        if isinstance(state, Running):
            self._later(max(0.0, state.began + seconds - self.now))

    def moves(self, node: int) -> Self:
        """Have a rank of a node that stood still print."""
        self._happens(self._nodes[node], events.WorkersIdle(0.0, self.now))
        return self

    def main_threads_stand(self, *nodes: int, seconds: float = 60.0) -> Self:
        """Have no main thread of these nodes run for long."""
        self._runs_for(seconds)
        for node in nodes:
            self._happens(self._nodes[node], events.MainThreadsBlocked(seconds, self.now))
        return self

    def main_thread_runs(self, node: int) -> Self:
        """Have a main thread run on a node where none did."""
        self._happens(self._nodes[node], events.MainThreadsBlocked(0.0, self.now))
        return self

    def shows(self, *ranks: Worker, at: str, on_screen: bool = False, calls: str = "") -> Self:
        """Have ranks show where they are; "": they cannot. A node answers for all its ranks.

        ``calls``: the file with the function that is called there.
        """
        called = f'  File "{calls}", line 9 in barrier\n' if calls else ""
        for rank in ranks:
            node, local = self._place(rank)
            stack = f'{called}  File "/train.py", line 7 in {at}'
            group = StackGroup((local,), stack) if at else StackGroup((local,), "no handler", False)
            node.stacks[local] = group
            node.on_screen = on_screen
        return self

    # What happens to nodes.

    def signalled(self, number: int, node: int = 0, *, by_parent: bool = False) -> Self:
        """Have an agent get a signal, or the workers' parent, which passes it on to the agent."""
        got = SignalReceived(number, self.now, to_fork_server=by_parent)
        self._happens(self._nodes[node], got)
        return self

    def asked_to_stop(self, node: int = 0, *, at_once: bool = False) -> Self:
        words = "clusterrun stop --now" if at_once else "clusterrun stop"
        self._happens(self._nodes[node], events.StopRequested(words, at_once, self.now))
        return self

    def loses_reader(self, node: int = 0) -> Self:
        """Have nobody read the output any more."""
        self._happens(self._nodes[node], events.OutputClosed(self.now))
        return self

    def loses_relay(self, node: int = 0) -> Self:
        lost = events.HelperLost("relay", "exited with code 1", 0, self.now)
        self._happens(self._nodes[node], lost)
        return self

    def loses_fork_server(self, node: int = 0) -> Self:
        """Kill the fork server of a node, and with it all ranks there."""
        self._nodes[node].alive.clear()
        lost = events.HelperLost("fork server", "was killed by SIGKILL", signal.SIGKILL, self.now)
        self._happens(self._nodes[node], lost)
        return self

    def fork_server_warns(self, printed: str = "", *refused: str) -> Self:
        """Have a fork server start that printed this, and to which the kernel refused that."""
        self._happens(self._nodes[0], events.ForkServerReady(printed, refused, self.now))
        return self

    def leaves(self, *names: str, node: int = 0, rank: int | None = None) -> Self:
        """Have ranks of a node start processes of these names, which live on."""
        there = self._nodes[node]
        for name in names:
            there.left.append(events.LeftoverProcess(500 + len(there.left), name, rank))
        return self

    def has_nothing_left(self, node: int = 0) -> Self:
        """Have all such processes of a node end by themselves; ``settles`` finds that there are none."""
        self._nodes[node].left.clear()
        if self._nodes[node].awaits_left:
            self._nodes[node].awaits_left = False
            self._happens(self._nodes[node], events.NoLeftovers(self.now))
        return self

    def is_clean(self, node: int = 0, survivors: Iterable[str] = ()) -> Self:
        """Kill what the ranks of a node have left, but for ``survivors``; ``settles`` does, too."""
        self._nodes[node].leftovers = False
        self._happens(self._nodes[node], events.CleanedUp(tuple(survivors), self.now))
        return self

    def is_checked(self, node: int, fault: str = "") -> Self:
        """Have the check of a node end, and find ``fault``."""
        self._happens(self._nodes[node], events.NodeChecked(fault, self.now))
        return self

    def loses_node(self, node: int) -> Self:
        """Kill an agent, and with it all ranks there: its kernel reports that."""
        self._is_killed(node)
        if node == 0:
            self._is_led = False
            self._nodes[node].up.clear()
        else:
            self._gone(node)
        return self

    def loses_host(self, node: int) -> Self:
        """Switch a machine off, whose kernel answers no more."""
        self._is_killed(node)
        self._gone(node, is_unreachable=True)
        return self

    def loses_connection(self, node: int) -> Self:
        """Reset the connection to an agent that lives, and has heard of node 0 just now."""
        self._nodes[node].is_dropped = True
        self._gone(node, is_dropped=True)
        return self

    def outlives_lease(self, node: int) -> Self:
        """Have the fork server of a node kill its ranks, as their lease is over."""
        there = self._nodes[node]
        for local in sorted(there.alive):
            there.alive.discard(local)
            killed = outcomes.Killed(signal.SIGKILL)
            self._happens(there, events.WorkerEnded(local, killed, self.now, by_lease=True))
        return self

    def was_stopped(self, seconds: float) -> Self:
        """Stop node 0's agent for so long, and continue it: what has come meanwhile is not read yet."""
        self._decided(job_events.NodeZeroWasStopped(seconds, self.now))
        return self

    def reports_failed(
        self, node: int, rank: int, attempt: int | None = None, *, in_report: bool = False
    ) -> Self:
        """Have an agent say that a rank has failed, which may be none of its own or still run.

        It says so at once, or in the report of the end of all its ranks.
        """
        number = self._coordinator.attempt if attempt is None else attempt
        failed = fate_of(rank, 9, host=f"n{node}")
        self._nodes[node].up.append(
            messages.Done(number, (messages.DatedResult(failed, self.now),), None)
            if in_report
            else messages.FirstFailure(number, failed, self.now)
        )
        return self

    def joins(self, workers: int = 1, rank: int | None = None, **says: Any) -> Self:
        """Have another node ask for a place; ``says``: what is unusual in its first message."""
        self._introduces(self._connected(workers), rank=rank, **says)
        return self

    def asks_about_ranks(self, node: int = 0, *, rank: int | None = None) -> Self:
        """Have a user of a node ask how the ranks are, or one of them."""
        self._nodes[node].queries += 1
        query = queries.Query(self._nodes[node].queries, queries.Topic.RANKS, 1.2, rank)
        self._decided(job_events.MessageReceived(node, query, self.now))
        return self

    def answers(self, node: int, query: int) -> Self:
        """Have a node answer a query, by its number of all queries, asked or not."""
        self._answers(self._nodes[node], query, answers.NodeRanks(10, 0, "running", ()))
        return self

    def _answers(self, node: Node, query: int, body: Struct) -> None:
        encoded = msgspec.msgpack.encode(body)
        node.up.append(queries.Answer(query, node.number, f"n{node.number}", encoded))

    def nccl_says(self, *lines: str, behind: tuple[int, ...] = (), counts: str = "") -> Self:
        """Have NCCL answer so from now on; nobody else sees that it is asked."""
        self._nccl = nccl.NcclState(lines, behind, counts)
        return self

    def misses(self, node: int) -> Self:
        """Have node 0 hear nothing of a node for too long, whose agent and ranks are frozen."""
        self._nodes[node].is_frozen = True
        self._decided(job_events.MemberSilent(node, self.now))
        return self

    def freezes(self, node: int) -> Self:
        """Freeze an agent with its ranks; node 0 has not missed it yet."""
        self._nodes[node].is_frozen = True
        return self

    def loses_link(self, node: int) -> Self:
        """Cut a node off: its agent hears nothing of node 0, which then hears nothing of it."""
        lost = self._nodes[node]
        lost.up.clear()
        lost.down.clear()
        self._loses_node_0(lost, "has been silent for 17 s", is_silent=True)
        self._decided(job_events.MemberSilent(node, self.now))
        return self

    def hears_again(self, node: int) -> Self:
        """Give a node the orders for earlier attempts once more."""
        agent = self._nodes[node]
        for order in agent.orders:
            if agent.state and order.attempt < agent.state.number:
                self._happens(agent, events.CoordinatorSent(order, self.now))
        return self

    def thaws(self, node: int) -> Self:
        """Let a frozen node go on."""
        self._nodes[node].is_frozen = False
        return self

    def is_given_up(self, node: int) -> Self:
        """Have a node learn that node 0 has lost it, and the job goes on."""
        self._receives(self._nodes[node], messages.GivenUp("has been silent for 18 s"))
        return self

    def gets_orders(self, attempt: int, node: int = 0) -> Self:
        """Send a node all orders that name an attempt, for this attempt; of services, if there are any."""
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
            self._receives(self._nodes[node], order)
        return self

    def begins_anew(self) -> Self:
        """Order node 0 to check itself and to begin the next attempt, too early."""
        next_attempt = messages.NextAttempt(world_of(1, attempt=1), outcomes.NodeLost(1, "n1"))
        for order in (messages.CheckNode(), next_attempt):
            self._receives(self._nodes[0], order)
        return self

    # What follows.

    def passes(self, seconds: float) -> Self:
        """Let time pass, and what is due by then come."""
        self._later(seconds)
        for node in self._nodes:
            if node.deadline is not None and node.deadline <= self.now and not node.is_frozen:
                node.deadline = None
                self._happens(node, events.DeadlinePassed(self.now))
        if self._is_led and self._coordinator.due <= self.now:
            self._decided(job_events.TimePassed(self.now))
        return self

    def next_due(self) -> float:
        """Return the seconds until something is due."""
        agents = (node for node in self._nodes if not (node.is_over or node.is_frozen))
        times = [node.deadline for node in agents if node.deadline is not None]
        if self._is_led:
            times.append(self._coordinator.due)
        return max(0.0, min(times, default=0.0) - self.now)

    def ranks_of_world(self) -> int:
        """Return the number of ranks of the attempt that node 0 has begun."""
        return sum(each.hello.workers for each in self._coordinator.members.places)

    def is_heard(self, node: int) -> Self:
        """Deliver one message of a node to node 0, if one is on its way."""
        there = self._nodes[node]
        if there.up and self._is_led and not there.is_dropped:
            self._is_heard(there)
        return self

    def listens(self, node: int) -> Self:
        """Deliver one message to a node, or the end of its connection."""
        there = self._nodes[node]
        sent, there.up = there.up, deque()
        self._is_told(there)
        there.up.extendleft(reversed(sent))
        return self

    def goes_on(self, node: int) -> Self:
        """Do one thing that is due on a node: deliver a message, read output, clean up."""
        self._goes_on(self._nodes[node])
        return self

    def settles(self) -> Self:
        """Deliver every message, read all output, clean up: all that needs no time and no luck."""
        while any(self._goes_on(node) for node in self._nodes if not node.is_frozen):
            self._later(0.01)
        return self

    def hears(self) -> Self:
        """Deliver every message, and read and clean up nothing."""
        while any(self._is_told(node) for node in self._nodes if not node.is_frozen):
            self._later(0.01)
        return self

    def running(self, node: int) -> list[int]:
        """Return the ranks that run on a node, then the numbers of services' workers."""
        there = self._nodes[node]
        return [self._number_of(there.names[local]) for local in sorted(there.alive)]

    def saw(self) -> list[str]:
        """Return what followed since the last call, a line for each effect."""
        seen, self._seen = self._seen, []
        return seen

    def restarted(self, node: int = 0) -> str:
        """Return what a node reported when all ranks were started again last."""
        return self._nodes[node].restarted

    def meet_at(self, node: int = 0) -> str:
        """Return where the ranks of a node meet the others."""
        world = self._nodes[node].world
        assert world is not None
        return f"{world.master_addr}:{world.master_port}"

    def report(self, node: int = 0) -> list[str]:
        """Return what a node's report says of its ranks, in order, and of what is left."""
        outcome = self._nodes[node].outcome
        assert outcome is not None, f"node {node} has not ended"
        return [
            *map(_fate, outcome.results),
            *([f"{outcome.failure.worker} had failed before"] if outcome.failure else ()),
            *(f"still left: {survivor}" for survivor in outcome.survivors),
        ]

    # How the policy is asked, and what it answers.

    def _later(self, seconds: float) -> None:
        # Sums of tenths are exact: what is due after 25 s is due after 24.9 s and 0.1 s.
        self.now = round(self.now + seconds, 6)

    def _connected(self, workers: int) -> Node:
        self._nodes.append(Node(len(self._nodes), workers))
        self._decided(job_events.CallerConnected(self.now))
        return self._nodes[-1]

    def _introduces(self, node: Node, at: str = "", **says: Any) -> None:
        """Have a node say what its agent is; ``at``: its address, else the one of its host."""
        usual = {"workers": node.size, "must": self._coordinator.own_hello.must}
        said = hello(node.number, **{**usual, **says})
        address = at or f"10.0.0.{said.host.removeprefix('n')}"
        got = job_events.HelloReceived(node.number, address, said, self.now)
        self._decided(got)

    def _offered(self, rank: int) -> tuple[messages.ProgramOffer, ...]:
        """Return the programs of a node of a job with services, and the ports that are its own."""
        return tuple(
            messages.ProgramOffer(name, tuple(range(40000, 40000 + placed[rank])), 50000)
            for name, placed in self._placed.items()
            if placed.get(rank)
        )

    def _name_of(self, worker: Worker) -> Name:
        if isinstance(worker, str):
            service, _, number = worker.partition(" ")
            return service, int(number)
        rank = worker
        for name, placed in self._placed.items():
            if rank < sum(placed.values()):
                return "" if name == MAIN else name, rank
            rank -= sum(placed.values())
        return "", worker

    def _number_of(self, name: Name) -> int:
        service, rank = name
        if not service:
            return rank
        programs = list(self._placed)
        before = programs[: programs.index(service)]
        return rank + sum(sum(self._placed[each].values()) for each in before)

    def _local(self, node: Node, worker: Worker) -> LocalRank | None:
        """Return which of a node's workers it is; None if it is none of them."""
        name = self._name_of(worker)
        return LocalRank(node.names.index(name)) if name in node.names else None

    def _place(self, rank: Worker) -> tuple[Node, LocalRank]:
        # A lost node's rank may still run beside the one in its place.
        for node in sorted(self._nodes, key=lambda node: (node.is_frozen, -node.attempt)):
            local = self._local(node, rank)
            if local is not None and local in node.alive:
                return node, local
        raise AssertionError(f"rank {rank} is not running")

    def _page(self, rank: int) -> tuple[Node, LocalRank]:
        """Return where a rank has left what its agent sees, also if it has ended since."""
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
            node, local = self._place(rank)
            node.alive.discard(local)
            node.failing.discard(local)
            node.last_lines[local] = last
            self._happens(node, events.WorkerEnded(local, exit_status, self.now, since))
        return self

    def _read(self, node: Node, local: LocalRank) -> None:
        tail = node.last_lines.pop(local, "")
        self._happens(node, events.OutputEnded(local, tail, "", self.now))

    def _is_killed(self, node: int) -> None:
        self._nodes[node].is_over = True
        self._nodes[node].alive.clear()

    def _gives_lease(self, node: int) -> None:
        """Answer an agent's heartbeat: its ranks may run for some time without another answer."""
        if not self._coordinator.is_lost(node):
            self._coordinator.grants.answer(node, self.now)

    def _gone(self, node: int, *, is_unreachable: bool = False, is_dropped: bool = False) -> None:
        self._gives_lease(node)
        has_ended = not (is_unreachable or is_dropped)
        gone = job_events.MemberDisconnected(node, "", self.now, has_ended, is_unreachable)
        self._decided(gone)

    def _start(self, node: Node) -> None:
        """Begin the attempt of its world."""
        self.is_ending = False
        assert node.world is not None
        attempt, first = node.world.attempt, node.world.first_rank
        node.first, node.attempt = first, attempt
        node.deadline, node.leftovers, node.wanted = None, False, None
        node.left, node.awaits_left = [], False
        node.failing = set()
        possible = node.state.suspending.possible if node.state else node.may_suspend
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
        node.state = Attempt(self._asked_for, plan, foreground=self._terminal, can_suspend=possible)
        ranks = node.state.starting
        node.alive = set(ranks)
        self._see(node, f"starts {_named(node, ranks) or 'nothing yet'}, attempt {attempt}")
        self._begin_programs(node, ranks)

    def _of_services(self, world: World) -> list[Name]:
        """Return the workers of services on a node, in their order."""
        return [
            (program.name, program.position_on(world.node_rank)[1] + index)
            for program in world.programs[1:]
            for each in program.nodes
            if each.node_rank == world.node_rank
            for index in range(each.workers)
        ]

    def _begin_programs(self, node: Node, ranks: Iterable[LocalRank]) -> None:
        for local in sorted(ranks):
            if node.attempt or self._number_of(node.names[local]) not in self._starting:
                self._happens(node, events.WorkerStarted(local, 100 + local, "", self.now))

    def _see(self, node: Node, what: str) -> None:
        self._seen.append(f"node {node.number} {what}")

    def _happens(self, node: Node, event: events.Event) -> None:
        if node.is_over or node.state is None:
            return
        decided = node.state.handle(event)
        for action in decided:
            self._perform(node, node.state, action)

    def _perform(self, node: Node, state: Attempt, action: actions.Action) -> None:
        if effect := _effect(node, action):
            self._see(node, effect)
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
                self._sees_to_leftovers(node, action)
            case actions.CollectStacks():
                node.wanted = 0
            case actions.StartWorkers() | actions.RestartWorker():
                self._starts_more(node, action)
            case actions.ExpectNoStacks(locals_):
                self.shows(*(self._number_of(node.names[local]) for local in locals_), at="")
            case actions.SendToCoordinator(message):
                node.up.append(message)
            case actions.ReportFailure(local):
                result = next(each for each in self._fates(node) if each.local_rank == local)
                at = state.ended[local].failed_at
                node.up.append(messages.FirstFailure(state.number, result, at))
            case actions.ReportExits(locals_):
                exits = (
                    messages.DatedExit(state.plan.numbers[it], state.ended[it].at) for it in locals_
                )
                node.up.append(messages.RanksExited(state.number, tuple(exits)))
            case actions.ReportEnd():
                results = tuple(messages.DatedResult(it, it.clock) for it in self._fates(node))
                cause, lease_expired = state.external_cause, state.lease_expired
                node.up.append(messages.Done(state.number, results, cause, lease_expired))
            case actions.Pause():
                node.up.append(messages.Paused(paused=True))
            case actions.Resume():
                node.up.append(messages.Paused(paused=False))
            case actions.Restart() | actions.Rejoin() | actions.Finish():
                self._ends_attempt(node, state, action)

    def _ends_attempt(
        self, node: Node, state: Attempt, how: actions.Restart | actions.Rejoin | actions.Finish
    ) -> None:
        match how:
            case actions.Restart():
                assert isinstance(state.answer, messages.NextAttempt)
                node.restarted = _restarted(state.answer.reason, state.answer.progress)
                self._start(node)
            case actions.Rejoin():
                node.is_over = True
                self._see(node, "joins again")
            case actions.Finish():
                node.is_over = True
                node.outcome = conclude(state, self._fates(node))
                self._see(node, _told(node.outcome))

    def _starts_more(
        self, node: Node, action: actions.StartWorkers | actions.RestartWorker
    ) -> None:
        if isinstance(action, actions.RestartWorker):
            started = frozenset({action.local_rank})
        else:
            started = action.local_ranks
        node.alive |= started
        self._begin_programs(node, started)

    def _sees_to_leftovers(
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
                node.named.append(events.Left(tuple(node.left), self.now))

    def _fates(self, node: Node) -> tuple[outcomes.WorkerResult, ...]:
        assert node.state is not None
        return results_of(node.state, {}, {}, 0.0)

    def _decided(self, event: job_events.CoordinatorEvent) -> None:
        replies = self._coordinator.handle(event)
        for reply in replies:
            match reply:
                case job_events.Send(numbers, message):
                    self.is_ending = self.is_ending or isinstance(message, messages.Stop)
                    for number in numbers:
                        if not self._nodes[number].is_cut_off:
                            self._nodes[number].down.append(message)
                case job_events.PrintOnNodeZero(text):
                    self._see(self._nodes[0], f"prints: {text}")
                case job_events.StopListening():
                    assert not self._nodes[0].down, "a rank may start before its port is free"
                    self._see(self._nodes[0], "closes the port")
                case job_events.PreparePort():
                    self.further_attempts += 1
                    self._decided(job_events.PortReady(self.port, self.now))
        # A connection is closed once all that was sent has left.
        for reply in replies:
            if isinstance(reply, job_events.Disconnect):
                for number in reply.connections:
                    if not (self._nodes[number].is_over or self._nodes[number].is_dropped):
                        self.loses_connection(number)

    def _goes_on(self, node: Node) -> bool:
        """Do one thing that is due on a node; return whether there was one."""
        if self._is_told(node):
            return True
        if node.unread and not node.is_over:
            self._read(node, node.unread.pop(0))
            return True
        if node.named and not node.is_over:
            self._happens(node, node.named.popleft())
            return True
        if node.awaits_left and not (node.left or node.is_over):
            self.has_nothing_left(node.number)
            return True
        if node.leftovers and not node.is_over:
            node.leftovers = False
            self._happens(node, events.CleanedUp((), self.now))
            return True
        return self._sends_stacks(node)

    def _sends_stacks(self, node: Node) -> bool:
        """Send the stacks of a node if all its ranks have shown theirs; return whether it does."""
        if node.wanted is None or not node.alive <= node.stacks.keys():
            return False
        if node.state is None:
            return False
        stacks = (group for local, group in node.stacks.items() if local in node.alive)
        shown = node.state.stacks_by_rank(stacks)
        number, node.wanted, node.stacks = node.wanted, None, {}
        if number:
            self._answers(node, number, answers.NodeStacks(shown, node.on_screen))
        else:
            self._happens(node, events.StacksCollected(shown, self.now))
        return True

    def _is_told(self, node: Node) -> bool:
        """Deliver a message from or to a node; return whether there was one."""
        if node.up and self._is_led and not node.is_dropped:
            self._is_heard(node)
        elif node.is_over:
            return False
        elif node.down:
            self._receives(node, node.down.popleft())
        elif (node.is_dropped or not self._is_led) and not node.is_cut_off:
            self._loses_node_0(node, "is gone")
        else:
            return False
        return True

    def _loses_node_0(self, node: Node, how: str, *, is_silent: bool = False) -> None:
        node.is_cut_off = True
        if node.state is None:
            node.is_over = True
            self._see(node, "is disconnected")
        at_once = is_silent and self._asked_for.survives_node_loss
        lost = outcomes.NodeLost(0, node.leader, how)
        self._happens(node, events.CoordinatorLost(lost, self.now, at_once))

    def _is_heard(self, node: Node) -> None:
        message = node.up.popleft()
        self._decided(job_events.MessageReceived(node.number, message, self.now))

    def _receives(self, node: Node, message: messages.FromCoordinator) -> None:
        match message:
            case messages.NextAttempt(world):
                node.world = world
            case messages.WorldFormed(world, host):
                node.world, node.leader = world, host
                self._start(node)
            case messages.KeepWaiting():
                self._see(node, "waits for a place")
            case messages.SuspensionPossible() if node.state is None:
                node.may_suspend = True
                self._see(node, "will take SIGTERM for a request to suspend")
            case messages.Paused(paused):
                self._see(node, f"{'bears' if paused else 'no longer bears'} node 0's silence")
            case messages.Refused(refusal, text, hint):
                node.is_over = True
                advice = f" ({' '.join(hint.splitlines())})" if hint else ""
                self._see(node, f"{ANSWERS[refusal]}{text}{advice}")
            case messages.GivenUp() if node.state is None:
                node.is_over = True
                self._see(node, "joins again")
            case messages.Verdict() if node.state is None:
                node.is_over = True
                self._see(node, "ends without having had a place")
            case messages.Notice(text):
                self._see(node, f"prints: {text}")
            case queries.Query() | queries.Answer() | queries.EndOfAnswers():
                self._asks_or_is_asked(node, message)
            case messages.PrintStacks(text):
                lines = " | ".join(line.strip() for line in text.splitlines())
                self._see(node, f"shows stacks: {lines}")
        # Who has the verdict closes the connection; node 0's own agent has none.
        is_last = isinstance(message, messages.Verdict | messages.GivenUp)
        node.is_cut_off |= is_last and node.number > 0
        if isinstance(message, messages.Order):
            if isinstance(message, AttemptOrder):
                node.orders.append(message)
            self._happens(node, events.CoordinatorSent(message, self.now))

    def _asks_or_is_asked(
        self, node: Node, message: queries.Query | queries.Answer | queries.EndOfAnswers
    ) -> None:
        match message:
            case queries.Query(number, queries.Topic.STACKS):
                self._see(node, "asks its ranks for their stacks")
                node.wanted = number
                if not node.alive:
                    self._sends_stacks(node)
            case queries.Query(number, queries.Topic.NCCL):
                self._answers(node, number, self._nccl)
            case queries.Query(number):
                self._see(node, "answers a query")
                self.answers(node.number, number)
            case queries.Answer(number, answering):
                self._see(node, f"gets node {answering}'s answer to its query {number}")
            case queries.EndOfAnswers(number, missing, _, waiting, suspension):
                those = queries.missing_nodes(missing)
                others = (*those, *(f"{host} waits for a place" for host in waiting), suspension)
                known = "; ".join(filter(None, others)) or "no node is missing"
                self._see(node, f"has all answers to its query {number}: {known}")


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
    """Tell whether a message changes nothing in a suspension that goes on.

    Lines on the terminal do not, nor do first calls, after which SIGTERM is a request.
    """
    return isinstance(message, messages.Notice | messages.RankCallsSuspend)


def _effect(node: Node, action: actions.Action) -> str:
    """Return what others see of an action at once; "" for nothing."""
    match action:
        case actions.SignalWorkers(local_ranks, number, group, except_failing):
            assert local_ranks <= node.alive, "signals a rank that has ended"
            local_ranks -= node.failing if except_failing else set()
            groups = " and all they started" if group else ""
            if not local_ranks:
                return ""
            return f"sends {_name(number)} to {_named(node, local_ranks)}{groups}"
        case actions.StartWorkers(local_ranks):
            return f"starts {_named(node, local_ranks)}"
        case actions.RestartWorker(local):
            return f"starts {_named(node, [local])} again"
        case actions.ProbeReadiness(local):
            return f"asks whether {_named(node, [local])} is ready"
        case actions.ForwardSignal(number):
            return f"passes {_name(number)} on to ranks that handle it"
        case actions.PrintNotice(text):
            return f"prints: {text}"
        case actions.KillLeftovers(local_ranks):
            return f"kills what is left of {_named(node, local_ranks)}"
        case actions.CleanUp() | actions.AwaitLeftovers() | actions.SignalLeftovers():
            return f"{_done_about_leftovers(action)} what its ranks have left"
        case actions.ReleaseRanks(mark):
            return f"lets its ranks go on{f', to save at step {mark - 1}' if mark else ''}"
        case _:
            return EFFECTS.get(type(action), "")


def _done_about_leftovers(
    action: actions.CleanUp | actions.AwaitLeftovers | actions.SignalLeftovers,
) -> str:
    match action:
        case actions.CleanUp():
            return "kills"
        case actions.AwaitLeftovers():
            return "waits for"
        case actions.SignalLeftovers(number):
            return f"sends {_name(number)} to"


def _named(node: Node, local_ranks: Iterable[LocalRank]) -> str:
    """Return "ranks 0-3, server rank 2"; "" for none."""
    found: dict[str, list[int]] = {}
    for local in sorted(local_ranks):
        service, rank = node.names[local]
        found.setdefault(f"{service} " if service else "", []).append(rank)
    return ", ".join(f"{service}{_ranks(ranks)}" for service, ranks in found.items())


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {','.join(number_ranges(ranks))}"


def _name(number: int) -> str:
    known = signal.Signals._value2member_map_
    return signal.Signals(number).name if number in known else f"signal {number}"


def _fate(result: outcomes.WorkerResult) -> str:
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


def _told(outcome: outcomes.Outcome) -> str:
    rather = f" (no restart: {outcome.no_restart})" if outcome.no_restart else ""
    return f"ends with {outcome.exit_code}: {_why(outcome.reason)}{rather}"


def _restarted(reason: outcomes.Reason, progress: outcomes.RestartProgress) -> str:
    counts = f"restarts: {progress.restarts}, lost nodes: {progress.losses}"
    nodes = f", nodes: {progress.nodes}" if progress.nodes else ""
    places = (
        f"; node {each.lost.node_rank} ({each.lost.host}) {each.lost.how}:"
        f" {each.host or 'nobody'} has its place"
        for each in progress.replacements
    )
    return f"{_why(reason)}; {counts}{nodes}{''.join(places)}"


def _after(exits: outcomes.EarlierExits | None) -> str:
    """Return how long after the clean exits of peers a rank failed."""
    if exits is None:
        return ""
    others = f" and {exits.more} others" if exits.more else ""
    return f" {exits.seconds:.1f} s after {_ranks(exits.ranks)}{others} exited with 0"


def _why(reason: outcomes.Reason) -> str:
    match reason:
        case outcomes.Succeeded():
            return "all ranks have succeeded"
        case outcomes.WorkerFailed(cause, fails_check, earlier):
            unfit = ", and its node is unfit" if fails_check else ""
            return f"{cause.worker} failed{_after(earlier)}{unfit}"
        case outcomes.Interrupted(number):
            return f"it got {_name(number)}"
        case outcomes.OutputGone():
            return "nobody reads its output"
        case outcomes.HelperFailed(name, how):
            return f"its {name} {how}"
        case outcomes.NodeLost(node_rank, _, how):
            return f"node {node_rank} {how}"
        case outcomes.Hung(seconds, ranks, sign=sign):
            waits = f", and the others wait for {_ranks(ranks)}" if ranks else ""
            moving = {"silent": "rank", "still": "main thread", "behind": "collective"}
            what = moving[sign.value]
            return f"no {what} has moved for {seconds:.0f} s{waits}"
        case outcomes.Suspended(by, step, _, _, silent):
            all_ = f"all but {_ranks(silent)}" if silent else "all"
            return f"{all_} saved at step {step}, as {by} asked"
        case outcomes.NotSuspended(by, step, _, unsaved, silent, given_up):
            when = " when it was typed again" if given_up else ""
            late = _ranks((*unsaved, *silent)) if unsaved or silent else "ranks"
            return f"{late} did not save at step {step}{when}, as {by} asked"
        case _:
            raise AssertionError(f"no words for {reason}")
