"""A job as its user sees it, without a process: what happens to ranks and nodes, and what follows.

A history is a list of happenings in the words of docs/glossary.md. What follows is text, a line for
each effect on the world outside of the policy: a signal to ranks, a line on the terminal, a start, an
end. So a history names no module, class or message of the product. The only file that does is this
one: when the policy is written anew, it is, and no history.
"""

import signal
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Self

from msgspec.structs import replace

from tests.agent.node_plans import plan_of
from tests.histories.door import (
    AttemptState,
    Fate,
    GlobalRank,
    LocalRank,
    OnHang,
    Outcome,
    Reason,
    ReformRules,
    RestartRules,
    Rules,
    StackGroup,
    Suspending,
    SuspendRules,
    actions,
    conclude,
    coordinator_actions,
    coordinator_events,
    decide,
    decide_for_all,
    due,
    events,
    fates_of,
    in_next_attempt,
    messages,
    outcomes,
    runs,
)
from tests.rendezvous.nodes import hello, opened_job

AttemptOrder = messages.Stop | messages.HoldRanks | messages.SaveAt | messages.CancelSuspension

GRACE = 25.0
"""Seconds."""


class Node:
    """An agent, its ranks, and the messages that were sent and not delivered."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size, self.first = number, size, 0
        self.state: AttemptState | None = None
        """None: it has no place yet."""
        self.up: deque[messages.AgentMessage] = deque()
        self.down: deque[messages.FromCoordinator] = deque()
        self.alive: set[LocalRank] = set()
        self.unread: list[LocalRank] = []
        """Ranks that have ended, and whose last lines are not known yet."""
        self.last_lines: dict[LocalRank, str] = {}
        self.may_suspend = False
        """It was told so before it had a place."""
        self.wanted: int | None = None
        """The round of stacks for which its ranks were asked."""
        self.stacks: dict[LocalRank, StackGroup] = {}
        self.leftovers = self.is_over = self.is_frozen = False
        self.is_dropped = self.is_cut_off = False
        self.deadline: float | None = None
        self.orders: list[AttemptOrder] = []
        """All that it was given."""
        self.next_world: tuple[int, int, int] = (0, 0, 0)
        """The next attempt, this node's first rank in it, and the number of nodes."""


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
        most_losses: int | None = None,
        rejoin: float = 0.0,
        grows_after: float | None = None,
        final_codes: Iterable[int] = (),
        terminal: bool = False,
        groups: bool = False,
        on_hang: str = "report",
        finds_hangs: bool = False,
        suspend_signal: int | None = None,
        suspend_code: int = 75,
    ) -> None:
        """Start a job.

        Args:
            nodes: the number of those that work.
            workers: the number of ranks on each node, or of each.
            restarts: how often all ranks are started again after a failure.
            spares: the number of nodes that wait.
            least: with fewer nodes the job ends; None: the number of nodes never changes.
            most_losses: how many nodes may be lost; None: any number.
            rejoin: seconds for which a job waits for another node in a lost one's place.
            grows_after: seconds after which a job restarts for nodes that have joined; None: never.
            final_codes: exit codes after which no other attempt follows.
            terminal: the one rank has the terminal.
            groups: the ranks are no Python programs: a signal goes to their groups.
            on_hang: what follows when no rank moves: "report", "restart" or "stop".
            finds_hangs: agents say when they begin to watch whether ranks move.
            suspend_signal: asks for a suspension, and is not passed on.
            suspend_code: the exit code of a job that was suspended.

        """
        self.now = 100.0
        self._seen: list[str] = []
        reforming = ReformRules(spares, most_losses, rejoin)
        if least is not None:
            reforming = replace(reforming, fewest=least, most=nodes, grows_after=grows_after)
        self._rules = Rules(
            GRACE,
            foreground=terminal,
            suspend_signal=suspend_signal,
            finds_hangs=finds_hangs,
            kills_if_cut_off=reforming.lives_on,
        )
        self._groups = groups
        self._is_led = True
        """Node 0's agent, which has the coordinator, lives."""
        self.begun = 0
        """How many other attempts have begun."""
        self.is_ending = False
        """The ranks of all nodes have been ordered to stop, and no other attempt has begun."""
        total = nodes + spares
        sizes = [workers] * total if isinstance(workers, int) else workers
        self._coordinator = opened_job(
            total,
            restarts=RestartRules(restarts, final_codes=tuple(final_codes), ends_on_repeat=False),
            workers=sizes[0],
            reforming=reforming,
            on_hang=OnHang(on_hang),
            suspending=SuspendRules(exit_code=suspend_code),
        )
        self._nodes = [Node(number, size) for number, size in enumerate(sizes)]
        self._decided(coordinator_events.TimePassed(0.0))
        for number in range(1, total):
            said = hello(number, total, rank=number, workers=sizes[number])
            self._decided(coordinator_events.CallerConnected(self.now))
            self._decided(coordinator_events.HelloReceived(number, "", said, self.now))
        working = self._coordinator.first_ranks
        for node in self._nodes:
            node.down.clear()
            if node.number in working:
                self._start(node, 0, working[node.number], len(working))
        self._seen.clear()

    # What happens to ranks.

    def exits(self, *ranks: int, code: int = 0, last: str = "") -> Self:
        """Have ranks exit, whose last lines are ``last``."""
        for rank in ranks:
            node, local = self._ended(rank)
            node.last_lines[local] = last
            self._happens(node, events.WorkerExited(local, code, self.now))
        return self

    def dies(self, *ranks: int, by: int = signal.SIGKILL) -> Self:
        for rank in ranks:
            node, local = self._ended(rank)
            self._happens(node, events.WorkerKilled(local, by, self.now))
        return self

    def cannot_start(self, rank: int, step: str, error: str) -> Self:
        """Have a rank end before its program runs."""
        node, local = self._ended(rank)
        self._happens(node, events.WorkerNotStarted(local, step, error, self.now))
        return self

    def is_stopped(self, rank: int, by: int = signal.SIGTSTP) -> Self:
        """Stop a rank, as Ctrl-Z does."""
        node, local = self._place(rank)
        self._happens(node, events.WorkerStopped(local, by, self.now))
        return self

    def is_read(self, rank: int) -> Self:
        """Read the last lines of a rank that has ended; ``settles`` reads all."""
        node = next(each for each in self._nodes if LocalRank(rank - each.first) in each.unread)
        node.unread.remove(LocalRank(rank - node.first))
        self._read(node, LocalRank(rank - node.first))
        return self

    def handles_not(self, number: int, *ranks: int, node: int = 0) -> Self:
        """Have a forwarded signal find ranks without a handler for it."""
        locals_ = tuple(self._place(rank)[1] for rank in ranks)
        self._happens(self._nodes[node], events.SignalNotHandled(number, locals_, self.now))
        return self

    # What happens in a suspension.

    def asks(self, *ranks: int) -> Self:
        """Have agents see that ranks have asked, for the first time, whether they should save."""
        for rank in ranks:
            node, local = self._page(rank)
            self._happens(node, events.RankAsked(local, self.now))
        return self

    def asked_to_suspend(self, by: str, node: int = 0) -> Self:
        self._happens(self._nodes[node], events.SuspensionWanted(by, self.now))
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
        for node in nodes:
            self._happens(self._nodes[node], events.WorkersIdle(seconds, self.now))
        return self

    def moves(self, node: int) -> Self:
        """Have a rank of a node that stood still print."""
        self._happens(self._nodes[node], events.WorkersActive(self.now))
        return self

    def shows(self, *ranks: int, at: str) -> Self:
        """Have ranks show where they are; "": they cannot. A node answers for all its ranks."""
        for rank in ranks:
            node, local = self._place(rank)
            stack = f'  File "/train.py", line 7 in {at}'
            group = StackGroup((local,), stack) if at else StackGroup((local,), "no handler", False)
            node.stacks[local] = group
            self._answers(node)
        return self

    # What happens to nodes.

    def signalled(self, number: int, node: int = 0, *, by_parent: bool = False) -> Self:
        """Have an agent get a signal, or the workers' parent, which passes it on to the agent."""
        got = events.SignalReceived(number, self.now, to_fork_server=by_parent)
        self._happens(self._nodes[node], got)
        return self

    def asked_to_stop(self, by: str, node: int = 0, *, at_once: bool = False) -> Self:
        self._happens(self._nodes[node], events.StopWanted(by, at_once, self.now))
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

    def is_clean(self, node: int = 0, survivors: Iterable[str] = ()) -> Self:
        """Kill what the ranks of a node have left, but for ``survivors``; ``settles`` does, too."""
        self._nodes[node].leftovers = False
        self._happens(self._nodes[node], events.CleanedUp(tuple(survivors), self.now))
        return self

    def loses_node(self, node: int) -> Self:
        """Kill an agent, and with it all ranks there."""
        lost = self._nodes[node]
        lost.is_over = True
        lost.alive.clear()
        if node == 0:
            self._is_led = False
            lost.up.clear()
        else:
            self._decided(coordinator_events.MemberGone(node, "", self.now))
        return self

    def joins(self, workers: int = 1, rank: int | None = None) -> Self:
        """Have another node ask for a place in the running job."""
        number = len(self._nodes)
        self._nodes.append(Node(number, workers))
        must = self._coordinator.own_hello.must
        said = hello(number, rank=rank, workers=workers, must=must)
        self._decided(coordinator_events.CallerConnected(self.now))
        self._decided(coordinator_events.HelloReceived(number, "", said, self.now))
        return self

    def misses(self, node: int) -> Self:
        """Have node 0 hear nothing of a node for too long, whose agent and ranks are frozen."""
        self._nodes[node].is_frozen = True
        self._decided(coordinator_events.MemberSilent(node, self.now))
        return self

    def loses_link(self, node: int) -> Self:
        """Cut a node off: its agent hears nothing of node 0, which then hears nothing of it."""
        lost = self._nodes[node]
        lost.up.clear()
        lost.down.clear()
        self._loses_node_0(lost, "has been silent for 15 s")
        self._decided(coordinator_events.MemberSilent(node, self.now))
        return self

    def hears_again(self, node: int) -> Self:
        """Give a node the orders for earlier attempts once more."""
        agent = self._nodes[node]
        for order in agent.orders:
            if agent.state and order.attempt < agent.state.attempt:
                self._happens(agent, events.CoordinatorSent(order, self.now))
        return self

    def thaws(self, node: int) -> Self:
        """Let a frozen node go on."""
        self._nodes[node].is_frozen = False
        return self

    # What follows.

    def passes(self, seconds: float) -> Self:
        """Let time pass, and what is due by then come."""
        self.now += seconds
        for node in self._nodes:
            if node.deadline is not None and node.deadline <= self.now and not node.is_frozen:
                node.deadline = None
                self._happens(node, events.DeadlinePassed(self.now))
        if self._is_led and due(self._coordinator) <= self.now:
            self._decided(coordinator_events.TimePassed(self.now))
        return self

    def next_due(self) -> float:
        """Return the seconds until something is due."""
        agents = (node for node in self._nodes if not (node.is_over or node.is_frozen))
        times = [node.deadline for node in agents if node.deadline is not None]
        if self._is_led:
            times.append(due(self._coordinator))
        return max(0.0, min(times, default=0.0) - self.now)

    def ranks_of_world(self) -> int:
        """Return the number of ranks of the attempt that node 0 has begun."""
        return sum(self._nodes[number].size for number in self._coordinator.ranks)

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
            self.now += 0.01
        return self

    def hears(self) -> Self:
        """Deliver every message, and read and clean up nothing."""
        while any(self._is_told(node) for node in self._nodes if not node.is_frozen):
            self.now += 0.01
        return self

    def saw(self) -> list[str]:
        """Return what followed since the last call, a line for each effect."""
        seen, self._seen = self._seen, []
        return seen

    # How the policy is asked, and what it answers.

    def _place(self, rank: int) -> tuple[Node, LocalRank]:
        for node in sorted(self._nodes, key=lambda node: (node.is_frozen, -node.next_world[0])):
            if LocalRank(rank - node.first) in node.alive:
                return node, LocalRank(rank - node.first)
        raise AssertionError(f"rank {rank} is not running")

    def _page(self, rank: int) -> tuple[Node, LocalRank]:
        """Return where a rank has left what its agent sees, also if it has ended since."""
        for node in self._nodes:
            if node.state and not node.is_over and 0 <= rank - node.first < node.size:
                return node, LocalRank(rank - node.first)
        raise AssertionError(f"no agent looks at what rank {rank} does")

    def _ended(self, rank: int) -> tuple[Node, LocalRank]:
        node, local = self._place(rank)
        node.alive.discard(local)
        return node, local

    def _read(self, node: Node, local: LocalRank) -> None:
        tail = node.last_lines.pop(local, "")
        self._happens(node, events.OutputEnded(local, tail, "", self.now))

    def _start(self, node: Node, attempt: int, first: int, nodes: int) -> None:
        self.is_ending = False
        node.first, node.alive = first, set(map(LocalRank, range(node.size)))
        node.deadline, node.leftovers, node.wanted = None, False, None
        ranks = frozenset(node.alive)
        before = node.state.suspending if node.state else Suspending(possible=node.may_suspend)
        node.state = AttemptState(
            self._rules,
            attempt,
            nodes,
            GlobalRank(first),
            self._groups,
            ranks,
            suspending=in_next_attempt(before),
        )
        self._see(node, f"starts {_named(node, ranks)}, attempt {attempt}")
        for local in sorted(ranks):
            self._happens(node, events.WorkerStarted(local, 100 + local, "", self.now))

    def _see(self, node: Node, what: str) -> None:
        self._seen.append(f"node {node.number} {what}")

    def _happens(self, node: Node, event: events.Event) -> None:
        if node.is_over or node.state is None:
            return
        node.state, decided = decide(node.state, event)
        for action in decided:
            self._perform(node, node.state, action)

    def _perform(self, node: Node, state: AttemptState, action: actions.Action) -> None:
        if effect := _effect(node, action):
            self._see(node, effect)
        match action:
            case actions.SetDeadline(seconds):
                node.deadline = self.now + seconds
            case actions.CollectOutput(local):
                node.unread.append(local)
            case actions.CleanUp():
                node.leftovers = True
            case actions.CollectStacks(number):
                node.wanted = number
            case actions.SendToCoordinator(message):
                node.up.append(message)
            case actions.ReportFailure(local):
                fate = next(each for each in self._fates(node) if each.local_rank == local)
                node.up.append(messages.FirstFailure(state.attempt, fate, 0.0))
            case actions.ReportEnd():
                cause = state.external_cause
                node.up.append(messages.done(state.attempt, self._fates(node), self.now, cause))
            case actions.Restart():
                self._start(node, *node.next_world)
            case actions.Finish():
                node.is_over = True
                outcome = conclude(state, state.attempt, self._fates(node))
                self._see(node, _told(outcome))

    def _fates(self, node: Node) -> tuple[Fate, ...]:
        assert node.state is not None
        plan = plan_of(node.size, attempt=node.state.attempt, first_rank=node.first)
        fates = fates_of(node.state, plan, {}, {}, 0.0)
        return tuple(replace(fate, host=f"n{node.number}") for fate in fates)

    def _decided(self, event: coordinator_events.CoordinatorEvent) -> None:
        for reply in decide_for_all(self._coordinator, event):
            match reply:
                case coordinator_actions.Send(numbers, message):
                    self.is_ending = self.is_ending or isinstance(message, messages.Stop)
                    for number in numbers:
                        if not self._nodes[number].is_cut_off:
                            self._nodes[number].down.append(message)
                case coordinator_actions.Disconnect(numbers):
                    for number in numbers:
                        self._drops(number)
                case coordinator_actions.PrintOnNodeZero(text):
                    self._see(self._nodes[0], f"prints: {text}")
                case coordinator_actions.PreparePort():
                    self.begun += 1
                    self._decided(coordinator_events.PortReady(29500, self.now))

    def _drops(self, number: int) -> None:
        """Have node 0 close its connection to a node, which finds out after the last message."""
        self._nodes[number].is_dropped = True
        self._nodes[number].up.clear()
        gone = coordinator_events.MemberGone(number, "", self.now, dropped=True)
        self._decided(gone)

    def _goes_on(self, node: Node) -> bool:
        """Do one thing that is due on a node; return whether there was one."""
        if self._is_told(node):
            return True
        if node.unread and not node.is_over:
            self._read(node, node.unread.pop(0))
            return True
        if node.leftovers and not node.is_over:
            node.leftovers = False
            self._happens(node, events.CleanedUp((), self.now))
            return True
        return self._answers(node)

    def _answers(self, node: Node) -> bool:
        """Send the stacks of a node if all its ranks have shown theirs; return whether it does."""
        if node.wanted is None or not node.alive <= node.stacks.keys():
            return False
        stacks = tuple(group for local, group in node.stacks.items() if local in node.alive)
        number, node.wanted, node.stacks = node.wanted, None, {}
        self._happens(node, events.StacksCollected(number, stacks, shown=False, at=self.now))
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

    def _loses_node_0(self, node: Node, how: str) -> None:
        node.is_cut_off = True
        if node.state is None:
            node.is_over = True
            self._see(node, "ends without having had a place")
        self._happens(node, events.CoordinatorLost("n0", how, self.now))

    def _is_heard(self, node: Node) -> None:
        message = node.up.popleft()
        self._decided(coordinator_events.MessageReceived(node.number, message, self.now))

    def _receives(self, node: Node, message: messages.FromCoordinator) -> None:
        match message:
            case messages.NextAttempt(world):
                node.next_world = world.attempt, world.first_rank, world.nodes
            case messages.WorldFormed(world):
                self._start(node, world.attempt, world.first_rank, world.nodes)
            case messages.SuspensionPossible() if node.state is None:
                node.may_suspend = True
            case messages.KeepWaiting():
                self._see(node, "waits for a place")
            case messages.Refused(_, text):
                node.is_over = True
                self._see(node, f"may not join: {text}")
            case messages.Verdict() if node.state is None:
                node.is_over = True
                self._see(node, "ends without having had a place")
            case messages.Notice(text):
                self._see(node, f"prints: {text}")
        if isinstance(message, messages.Order):
            if isinstance(message, AttemptOrder):
                node.orders.append(message)
            self._happens(node, events.CoordinatorSent(message, self.now))


def is_aside(message: object) -> bool:
    """Tell whether a message changes nothing in a suspension that goes on.

    Lines on the terminal do not, nor do first calls, after which SIGTERM is a request.
    """
    return isinstance(message, messages.Notice | messages.RankAsks)


def _effect(node: Node, action: actions.Action) -> str:
    """Return what others see of an action at once; "" for nothing."""
    match action:
        case actions.SignalWorkers(local_ranks, number, group):
            assert local_ranks <= node.alive, "signals a rank that has ended"
            groups = " and all they started" if group else ""
            if not local_ranks:
                return ""
            return f"sends {_name(number)} to {_named(node, local_ranks)}{groups}"
        case actions.ForwardSignal(number):
            return f"passes {_name(number)} on to ranks that handle it"
        case actions.PrintNotice(text):
            return f"prints: {text}"
        case actions.HideInterrupts():
            return "hides the tracebacks of Ctrl-C"
        case actions.Pause():
            return "stops with its ranks"
        case actions.Resume():
            return "continues its ranks"
        case actions.CollectStacks():
            return "asks its ranks for their stacks"
        case actions.PrintStacks(text):
            return "shows stacks: " + " | ".join(line.strip() for line in text.splitlines())
        case actions.WatchActivity():
            return "watches whether its ranks move"
        case actions.CleanUp():
            return "kills what its ranks have left"
        case actions.HoldRanks():
            return "holds its ranks"
        case actions.ReleaseRanks(mark):
            return f"lets its ranks go on{f', to save at step {mark - 1}' if mark else ''}"
        case actions.LetRanksLeave():
            return "lets ranks that have saved end"
        case _:
            return ""


def _named(node: Node, local_ranks: Iterable[LocalRank]) -> str:
    return _ranks([node.first + local for local in sorted(local_ranks)])


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {','.join(runs(ranks))}"


def _name(number: int) -> str:
    known = signal.Signals._value2member_map_
    return signal.Signals(number).name if number in known else f"signal {number}"


def _told(outcome: Outcome) -> str:
    rather = f" (no restart: {outcome.no_restart})" if outcome.no_restart else ""
    return f"ends with {outcome.exit_code}: {_why(outcome.reason)}{rather}"


def _why(reason: Reason) -> str:
    match reason:
        case outcomes.Succeeded():
            return "all ranks have succeeded"
        case outcomes.WorkerFailed(cause):
            return f"rank {cause.rank} failed"
        case outcomes.Interrupted(number):
            return f"it got {_name(number)}"
        case outcomes.OutputGone():
            return "nobody reads its output"
        case outcomes.HelperFailed(name, how):
            return f"its {name} {how}"
        case outcomes.NodeLost(node_rank, _, how):
            return f"node {node_rank} {how}"
        case outcomes.Hung(seconds, ranks):
            waits = f", and the others wait for {_ranks(ranks)}" if ranks else ""
            return f"no rank has moved for {seconds:.0f} s{waits}"
        case outcomes.Suspended(by, step, _, _, silent):
            all_ = f"all but {_ranks(silent)}" if silent else "all"
            return f"{all_} saved at step {step}, as {by} asked"
        case outcomes.NotSuspended(by, step, _, unsaved, silent, given_up):
            when = " when it was typed again" if given_up else ""
            late = _ranks((*unsaved, *silent)) if unsaved or silent else "ranks"
            return f"{late} did not save at step {step}{when}, as {by} asked"
        case _:
            raise AssertionError(f"no words for {reason}")
