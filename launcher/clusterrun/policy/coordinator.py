"""The coordinator, which decides for the whole job: four states, and what leads from one to the next.

    Gathering --all have joined--> Running --an attempt ends--> Restarting --all places taken--> Running
        |                             |                            |
        +--------- mismatch ----------+--------- verdict ----------+---------> Over

``Coordinator.handle`` takes an event, and returns what is to be done about it, in order. Each handler returns
the state that follows; only ``handle`` assigns it. An event changes what it must and copies nothing:
its cost does not grow with the number of nodes, unless something is sent to all of them.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from clusterrun.bounds import as_line, as_text
from clusterrun.job.job import MAIN
from clusterrun.job.options import OnHang
from clusterrun.loop import NEVER
from clusterrun.planning.plan import NumberedProgram, ProgramWorld, World
from clusterrun.policy import job_events as events
from clusterrun.policy import joining, messages, notices
from clusterrun.policy.assignment import Places, elastic_size, programs_in, worlds
from clusterrun.policy.cause import FailureEvidence, ReasonToStop
from clusterrun.policy.hangs import STACKS_FOLLOW, HangResponse, HangWatch
from clusterrun.policy.job_events import (
    Action,
    CoordinatorEvent,
    Disconnect,
    PreparePort,
    StopListening,
)
from clusterrun.policy.joining import Gathering, Mismatch, Rejection
from clusterrun.policy.leases import FORK_SERVER_KILL_INTERVALS, GrantedLeases
from clusterrun.policy.members import OWN, Members, Node, NodeReport
from clusterrun.policy.messages import AgentMessage, AttemptMessage, Hello, Refusal
from clusterrun.policy.notices import LineLimit, listed, process
from clusterrun.policy.outcome import (
    ExternalCause,
    HelperFailed,
    Hung,
    Interrupted,
    NodeLost,
    NotSuspended,
    Reason,
    ReasonToRestart,
    Succeeded,
    Suspended,
    WorkerFailed,
    WorkerResult,
)
from clusterrun.policy.queries import Answer, Query
from clusterrun.policy.query_rounds import QueryRounds
from clusterrun.policy.restarts import Restarts
from clusterrun.policy.settings import RendezvousSettings, silence
from clusterrun.policy.suspension import Suspension

if TYPE_CHECKING:
    from clusterrun.job.services import Service
    from clusterrun.policy.clean_exits import CleanExits
    from clusterrun.policy.service_progress import ServiceProgress

FEW_NODES = 8
"""In jobs of at most this many nodes, each node prints what the job waits for; in larger ones only node 0."""

SECONDS_BETWEEN_STOP_NOTICES = 60.0
"""On nodes whose workers have ended, while others run."""

HEARTBEATS_TO_SETTLE = 1.2
"""Members that are cut off together are found silent within one interval of heartbeats."""

MAX_REFUSALS_PRINTED = 16
"""Lines on node 0; a port scanner gets no more."""

SECONDS_TO_REPORT = 20.0
"""After the grace period: an agent whose workers even SIGKILL does not end reports within 14 s."""

SECONDS_BETWEEN_PAUSE_NOTICES = 10.0
"""Between two lines about pauses of one node."""

LEASE_OVER = "was stopped, or cut off, for too long: its workers' lease had expired"
"""How a node ended that is a member still."""


class Running(Struct):
    """An attempt, from the first worker to the last report."""

    attempt: int
    began: float
    hangs: HangWatch
    evidence: FailureEvidence = field(default_factory=FailureEvidence)
    next_notice: float = NEVER
    overdue_at: float = NEVER
    """When nodes that were told to stop, and have not reported, are lost."""
    is_killed: bool = False
    """All were told to kill their workers."""
    programs: tuple[ProgramWorld, ...] = ()
    services: "ServiceProgress | None" = None
    """None: the job has none."""
    exits: "CleanExits | None" = None
    """None: the job has one rank, for which none waits."""

    @property
    def work_is_done(self) -> bool:
        """Whether what still runs are services that are to end."""
        return self.services is not None and self.services.work_is_done


class Restarting(Struct):
    """All workers have ended; the next attempt begins when all its places are taken."""

    attempt: int
    """The one that has ended."""
    recheck_at: float
    """When to see whether the next attempt may begin; NEVER: as soon as its places are taken."""
    not_before: float = 0.0
    """It begins no earlier, whatever is known of lost nodes by then."""
    rejoin_ends: float = NEVER
    """How long empty places may stay so; NEVER: they do not."""
    checks: Node | None = None
    """It runs its check, and the next attempt waits for that."""


class Over(Struct):
    """All nodes know how the job ended, or why it cannot begin."""

    attempt: int
    informed: int = 1
    """How many nodes know that it cannot begin, if it has not begun."""
    mismatch: Mismatch = Mismatch("", "")
    """Why it cannot."""


State = Gathering | Running | Restarting | Over


class Coordinator:
    """What holds in every state of the job, and the state."""

    def __init__(
        self,
        settings: RendezvousSettings,
        hello: Hello,
        port: int,
        at: float,
        *,
        has_token: bool = False,
    ) -> None:
        """Begin with node 0's own agent.

        Args:
            settings: node 0's.
            hello: node 0's.
            port: where the workers of the first attempt meet.
            at: now, in seconds of the coordinator's clock.
            has_token: callers have proved that they hold the job's token.

        """
        self.settings = settings
        self.members = members = Members(Node(OWN, hello))
        self.grants = GrantedLeases(settings.rhythm)
        self.state: State = Gathering(settings, members, at, has_token=has_token)
        self.port = port
        """Where the workers of the attempt meet."""
        self._places = Places(members, settings)
        self._restarts = Restarts(settings.job.failures)
        self._suspension = Suspension(members, settings.job.suspending)
        self._queries = QueryRounds(members, self._suspension)
        self._settles_at = 0.0
        """A node was found silent: until then others are, too, if they were cut off together."""
        self._stopped = events.NodeZeroWasStopped(0.0, -NEVER)
        """The last time at which this agent itself was stopped for long."""
        self._lines = LineLimit()
        """Of each address from which members have connected."""
        self._refused: list[str] = []
        """The first few refused callers with the reasons; each is printed once."""

    # What the outside sees.

    def handle(self, event: CoordinatorEvent) -> list[Action]:
        """Take an event; return what is to be done about it, in order."""
        sender = self._sender(event)
        self.state = self._next(event)
        out, self.members.out = self.members.out, []
        return [each for each in out if not sender or self._may_do(each, sender, event.at)]

    def _sender(self, event: CoordinatorEvent) -> str:
        """Return the address of the member that an event is about; "": of none, or of node 0's own agent."""
        match event:
            case events.HelloReceived(address=address):
                return address
            case events.MessageReceived(connection) | events.MemberDisconnected(connection):
                node = self.members.find(connection)
                return "" if node is None else node.address
            case _:
                return ""

    def _may_do(self, action: Action, sender: str, at: float) -> bool:
        """Return whether to do what a member has caused: print no line after so many others of it."""
        is_line = isinstance(action, events.PrintOnNodeZero) or (
            isinstance(action, events.Send) and isinstance(action.message, messages.Notice)
        )
        return not is_line or self._lines.allows(sender, at)

    @property
    def due(self) -> float:
        """When ``TimePassed`` is to happen."""
        match self.state:
            case Gathering() as gathering:
                at = gathering.due
            case Running() as running:
                suspends_at = NEVER if running.evidence.first else self._suspension.due
                services = NEVER
                if running.services is not None and running.evidence.first is None:
                    services = running.services.due
                at = min(
                    running.next_notice,
                    running.hangs.due,
                    running.overdue_at,
                    self._exits_due(running),
                    suspends_at,
                    services,
                )
            case Restarting() as reforming:
                at = min(reforming.recheck_at, reforming.rejoin_ends)
            case Over():
                at = NEVER
            case _:
                assert_never(self.state)
        return min(self._queries.due, at)

    @property
    def own_hello(self) -> Hello:
        """Node 0's own."""
        return self.members.own.hello

    @property
    def size(self) -> int:
        """How many nodes work; before the job begins, how many are expected."""
        return len(self.members.places) or self.settings.nodes

    @property
    def attempt(self) -> int:
        """The number of the attempt that runs, or has ended; 0 before the first one."""
        return 0 if isinstance(self.state, Gathering) else self.state.attempt

    @property
    def all_are_informed(self) -> bool:
        """Whether all nodes know that the job cannot begin."""
        return isinstance(self.state, Over) and self.state.informed >= self.settings.nodes

    def is_paused(self, connection: int) -> bool:
        """Return whether a member is paused, and sends nothing until it continues."""
        node = self.members.find(connection)
        return node is not None and node.paused

    def is_lost(self, connection: int) -> bool:
        """Return whether a node with a place is lost."""
        node = self.members.find(connection)
        return node is not None and node.lost is not None

    def _next(self, event: CoordinatorEvent) -> State:
        match event:
            case events.CallerConnected():
                self._count_callers(1)
                return self.state
            case events.CallerDisconnected(refused, at):
                self._count_callers(-1)
                self._print_refusal(refused)
                if isinstance(self.state, Gathering):
                    return self._begin_if_complete(self.state, at)
                return self.state
            case events.HelloReceived(connection, address, hello, at):
                self._count_callers(-1)
                node = Node(connection, hello, address, called_at=at - hello.waited)
                return self._introduced(node, at)
            case events.MessageReceived(connection, message, at):
                return self._dispatch(self.members.find(connection), connection, message, at)
            case events.MemberDisconnected(connection, refused, at):
                self._print_refusal(refused)
                return self._gone(self.members.find(connection), event)
            case events.MemberSilent(connection, at):
                return self._silent(self.members.find(connection), connection, at)
            case events.NodeZeroWasStopped():
                return self._was_stopped(event)
            case events.TimePassed(at):
                if at >= self._queries.due:
                    self._queries.time_passed(at)
                    return self._take_answers(self.state, at)
                return self._time_passed(at)
            case events.PortReady(port, at) if isinstance(self.state, Restarting):
                return self._begin(self.state, port, at)
            case events.PortReady():
                return self.state
            case events.JoinAbandoned(why, _, hint):
                return self._give_up(Mismatch(why, hint))
            case _:
                assert_never(event)

    def _was_stopped(self, stop: events.NodeZeroWasStopped) -> State:
        self._stopped = stop
        if isinstance(self.state, Running):
            # The others may have been stopped, too: they have as long as before to report.
            self.state.overdue_at += stop.seconds
        return self.state

    # Nodes join.

    def _count_callers(self, change: int) -> None:
        if isinstance(self.state, Gathering):
            self.state.callers += change

    def _introduced(self, node: Node, at: float) -> State:
        if isinstance(self.state, Gathering):
            return self._greeted(self.state, node, at)
        return self._newcomer(node)

    def _greeted(self, gathering: Gathering, node: Node, at: float) -> State:
        """Let a caller join, refuse it, or end the job because of it."""
        former = gathering.of_agent(node.hello.identity)
        if former is None:
            return self._judge(gathering, node, at)
        if (node.connection or 0) < (former.connection or 0):
            # An older connection of the same agent, whose Hello was delayed.
            self._disconnect([node])
            return gathering
        self._disconnect([former])
        self._remove(gathering, former, "has connected again", at)
        return self._judge(gathering, node, at)

    def _judge(self, gathering: Gathering, node: Node, at: float) -> State:
        settings, own, newcomer = self.settings, self.own_hello, node.hello
        if rejection := joining.rejection(settings, own, newcomer):
            return self._refuse(node, rejection)
        mismatch = joining.mismatch(settings, own, newcomer)
        mismatch = mismatch or gathering.objection(newcomer)
        if mismatch is None:
            if newcomer.fault:
                return self._refuse_unfit(gathering, node, at)
            return self._admit(gathering, node, at)
        left_over = gathering.leftover(node)
        if left_over is node:
            return self._refuse(node, joining.REPLACED)
        if left_over is not None:
            self._send_refusal([left_over], joining.REPLACED)
            self._disconnect([left_over])
            why = f"is refused: {joining.REPLACED.notice}"
            self._remove(gathering, left_over, why, at)
            return self._judge(gathering, node, at)
        if gathering.has_token:
            # Others may not have called yet.
            return self._give_up(mismatch, newcomer=node)
        # Anyone who reaches the port could contradict: that must not end the job.
        return self._refuse(node, mismatch.rejection)

    def _refuse_unfit(self, gathering: Gathering, node: Node, at: float) -> State:
        """Refuse a node that fails its check, and end the job if too few others may come."""
        why, known = joining.failed_check(node.hello), len(gathering.unfit)
        if gathering.refuse_unfit(node.hello, at):
            self._refuse(node, why)
            return self._begin_if_complete(gathering, at)
        return self._give_up(Mismatch(why.text, why.hint, why.refusal), node, known)

    def _admit(self, gathering: Gathering, node: Node, at: float) -> State:
        own, newcomer = self.own_hello, node.hello
        gathering.admit(node, at)
        name = joining.first_difference(own.should, newcomer.should)
        if name and not gathering.has_warned:
            gathering.has_warned = True
            self.members.print(f"warning: {notices.disagreement(name, own, newcomer)}")
        return self._begin_if_complete(gathering, at)

    def _newcomer(self, node: Node) -> State:
        """Let a node join while the job runs: it waits for a place."""
        state, settings, own = self.state, self.settings, self.own_hello
        rejection = joining.rejection(settings, own, node.hello) or self._too_late()
        if rejection is None and (why := joining.mismatch(settings, own, node.hello)):
            rejection = why.rejection
        if rejection is None and node.hello.fault:
            rejection = joining.failed_check(node.hello)
        if rejection is not None:
            return self._refuse(node, rejection)
        self.members.add(node)
        self.members.waiting.append(node)
        self.members.send([node], messages.KeepWaiting(own.host))
        if self._suspension.is_possible:
            self.members.send([node], messages.SuspensionPossible())
        self.members.print(f"{process(node.hello)} has joined and {self._waits_for()}")
        return self._go_on(state) if isinstance(state, Restarting) else state

    def _waits_for(self) -> str:
        """Return when the node comes in that has joined last."""
        settings, here = self.settings, len(self.members.present)
        if (
            settings.job.is_elastic
            and elastic_size(here + len(self.members.waiting), settings) > here
        ):
            return "joins when all workers restart"
        return "waits to take the place of a lost node"

    def _too_late(self) -> Rejection | None:
        """Return why no node can join a job that has begun; None if it may wait for a place."""
        settings, place = self.settings, self.settings.place
        if isinstance(self.state, Over):
            if self.state.mismatch.text:
                why = self.state.mismatch
                return Rejection(why.refusal, why.text, why.hint, "")
        elif settings.job.survives_node_loss:
            # Each node may come back once at a time.
            most = max(self.size + settings.elasticity.spares, settings.job.nnodes)
            if len(self.members.waiting) < most:
                return None
            names = listed(each.hello.host for each in self.members.waiting)
            text = f"enough nodes wait for a place in the job at {place}: {names}"
            return Rejection(Refusal.GIVE_UP, text, "", f"{most} nodes wait already")
        hosts = listed(each.hello.host for each in self.members.places)
        text = f"the job at {place} has all its {self.size} nodes: {hosts}"
        return Rejection(Refusal.GIVE_UP, text, "", f"all {self.size} nodes have joined")

    def _refuse(self, node: Node, why: Rejection) -> State:
        if isinstance(self.state, Over):
            self.state.informed += 1
        self._send_refusal([node], why)
        self._disconnect([node])
        if why.notice:
            self._print_refusal(f"{process(node.hello)} at {node.address}: {why.notice}")
        return self.state

    def _send_refusal(self, nodes: Iterable[Node], why: Rejection) -> None:
        self.members.send(
            nodes, messages.Refused(why.refusal, as_line(why.text), as_text(why.hint))
        )

    def _print_refusal(self, text: str) -> None:
        """Print each refused caller and the reason once."""
        if text and text not in self._refused and len(self._refused) < MAX_REFUSALS_PRINTED:
            self._refused.append(text)
            self.members.print(f"refused {text}")

    def _remove(self, gathering: Gathering, node: Node, why: str, at: float) -> None:
        gathering.remove(node, at)
        self.members.print(f"{process(node.hello)} {why}")

    def _give_up(self, why: Mismatch, newcomer: Node | None = None, informed: int = 0) -> State:
        """End the job before it begins.

        ``newcomer`` is why, and others may still call; ``informed`` nodes know it that are not members.
        """
        if not isinstance(self.state, Gathering):
            return self.state
        everyone = dict.fromkeys(
            (*self.members.by_connection.values(), newcomer or self.members.own)
        )
        self._send_refusal(everyone, why.rejection)
        self._disconnect([each for each in everyone if each is not self.members.own])
        return Over(0, self.settings.nodes if newcomer is None else len(everyone) + informed, why)

    def _begin_if_complete(self, gathering: Gathering, at: float) -> State:
        """Begin if all nodes have joined, or if it is too late for the others."""
        if at < gathering.settled_at:
            return gathering
        nodes, settings = gathering.in_order(), self.settings
        if not any(each.hello.workers for each in nodes):
            return self._give_up(joining.NO_WORKER)
        if not settings.keeps_rendezvous_port:
            # The workers' port must be free before any node can start a worker.
            self.members.out.append(StopListening())
        if len(nodes) != settings.nodes:
            self.members.print(gathering.begins_without())
        working = settings.nodes - settings.elasticity.spares
        places, self.members.waiting = nodes[:working], nodes[working:]
        running = self._enter(places, 0, at)
        host = self.own_hello.host
        for each, world in zip(places, self._worlds(running, self.port), strict=True):
            self.members.send([each], messages.WorldFormed(world, host))
        for each in self.members.waiting:
            self.members.send([each], messages.KeepWaiting(host))
        return running

    # An attempt runs.

    def _enter(self, places: list[Node], attempt: int, at: float) -> Running:
        """Take note that an attempt begins in these places."""
        first = 0
        for rank, node in enumerate(places):
            node.rank, node.first_rank, node.had_rank = rank, first, True
            first += node.hello.workers
        for each in self.members.by_connection.values():
            each.failure = each.report = None
        self.members.places = places
        self._suspension.begin_attempt(attempt)
        services, programs = self.settings.job.services, tuple[ProgramWorld, ...]()
        if services:
            names = (MAIN, *(each.name for each in services))
            programs = programs_in(places, names, self.settings.host.value)
        numbered = (each.numbered for each in programs)
        job, respond = self.settings.job, self._response_to_hang
        running = Running(
            attempt, at, HangWatch(self.members, self._queries, job, numbered, respond)
        )
        if first > 1:
            running.hangs.watch_nccl(at)
        if services or first > 1:
            of_worlds = {MAIN, *(each.name for each in services if each.world)}
            of_several = [each.numbered for each in programs if each.name in of_worlds]
            running.exits = _clean_exits(of_several or [NumberedProgram(MAIN, 0, first)])
        if services:
            running.programs = programs
            running.services = _service_progress(services, programs, at)
        return running

    def _worlds(self, running: Running, port: int) -> list[World]:
        """Return each node's part in the attempt that begins, by rank."""
        master = self.settings.host.value, port
        run_id = self.settings.job.join.run_id
        return worlds(self.members.places, run_id, running.attempt, master, running.programs)

    def _dispatch(
        self, node: Node | None, connection: int, message: AgentMessage, at: float
    ) -> State:
        """Take a message if its sender may send it in this state, and it belongs to the attempt that runs."""
        state = self.state
        if node is None or not self.members.places or isinstance(state, Gathering):
            # Only members of a running job send such messages.
            self.members.out.append(Disconnect((connection,)))
            return state
        if node.rank is None and isinstance(message, messages.EndedExternally):
            return self._waiting_node_ends(node, message.external_cause, at)
        match message:
            case messages.RequestSuspension(by):
                return self._suspension_wanted(state, node, by, at)
            case _ if node.rank is None:
                return state
            case messages.Checked(fault):
                return self._checked(state, node, fault, at)
            case Query() | Answer() | messages.RequestStacks():
                return self._query(state, node, message, at)
            case messages.Paused(paused):
                if not isinstance(state, Over) and paused != node.paused:
                    self._paused(node, at, paused=paused)
            case (
                messages.EndedExternally(_, Suspended() | NotSuspended())
                | messages.Done(external_cause=Suspended() | NotSuspended())
            ):
                # What has become of a suspension the coordinator says itself.
                self._drop(node, message)
            case messages.EndedExternally(_, HelperFailed() as cause) if self._outlives(
                node
            ) and not isinstance(state, Over):
                return self._lost(state, node, at, how=_without_helper(cause))
            case messages.EndedExternally(_, cause) if isinstance(state, Restarting):
                return self._end(state, cause)
            case _ if not isinstance(state, Running) or message.attempt < state.attempt:
                # That attempt is over on all nodes already.
                return state
            case _ if message.attempt > state.attempt or not node.may_send(message):
                self._drop(node, message)
            case _:
                return self._news_of_attempt(state, node, message, at)
        return state

    def _drop(self, node: Node, message: AgentMessage) -> None:
        """Disconnect a member that has sent what no agent of ours would: nothing it says counts more."""
        what = f"it sent a message that has no place here ({type(message).__name__})"
        self._print_refusal(f"{process(node.hello)} at {node.address}: {what}")
        self._disconnect([node])

    def _news_of_attempt(
        self, running: Running, node: Node, message: AttemptMessage, at: float
    ) -> State:
        """Take a message about the attempt that runs."""
        evidence, own = running.evidence, self.own_hello.host
        match message:
            case messages.Idle(_, seconds, still):
                longest = at - running.began
                seconds, still = min(seconds, longest), min(still, longest)
                running.hangs.idle(node, messages.Idle(running.attempt, seconds, still), at)
            case messages.WorkersReady() | messages.WorkerStartsAgain() | messages.ProgramEnded():
                if running.services is not None and evidence.first is None:
                    self._services_go_on(running, running.services, node, message)
            case (
                messages.RankCallsSuspend()
                | messages.Held()
                | messages.Saves()
                | messages.RankExitedEarly()
            ):
                if evidence.first is None:
                    return self._stop(
                        running, self._suspension.received(node, message, at), own, at
                    )
            case _ if node.lost is not None and node.report is None:
                # It went on after it had been given up: the others end without it.
                return running
            case messages.EndedExternally(_, cause, at_once):
                # Also from a node that has reported: its user may not want to wait for the others.
                cause = self._with_host(node, cause)
                self._note_no_restart(running, node, cause)
                evidence.add_external(cause, at)
                return self._stop(running, cause, node.hello.host, at, at_once=at_once)
            case _ if node.report is not None:
                # Its report was its last message in this attempt.
                self._drop(node, message)
            case messages.FirstFailure(_, result) if running.work_is_done:
                host = node.hello.host
                self.members.print(
                    f"{result.worker} on {host} failed after the main program had ended"
                )
            case messages.FirstFailure(_, result, failed_at):
                node.failure = _dated(failed_at, running.began, at), result
                return self._stop(running, result, node.hello.host, at)
            case messages.RanksExited(_, exits):
                for each in exits:
                    _add_exits(running, [each.number], _dated(each.at, running.began, at))
            case messages.RanksSucceeded():
                evidence.succeeded.add(node)
                _add_exits(running, node.ranks, at)
                return self._end_if_all_have_reported(running, at)
            case messages.Done():
                return self._ended_on(running, node, message, at)
            case _:
                assert_never(message)
        return running

    def _services_go_on(
        self,
        running: Running,
        services: "ServiceProgress",
        node: Node,
        message: messages.ServiceMessage,
    ) -> None:
        """Have all nodes start what has waited for a service, or end services with the main program."""
        match message:
            case messages.WorkersReady(attempt, numbers):
                if ready := services.became_ready(numbers):
                    order = messages.ServicesReady(attempt, ready)
                    self.members.send(self.members.places, order)
            case messages.WorkerStartsAgain(_, number):
                services.starts_again(number)
            case messages.ProgramEnded(attempt, name):
                if services.ended(name, node.rank or 0):
                    running.hangs.end_attempt()
                    self.members.send(self.members.places, messages.EndServices(attempt))
            case _:
                assert_never(message)

    def _ended_on(self, running: Running, node: Node, done: messages.Done, at: float) -> State:
        """Take the report of a node whose workers have all ended."""
        evidence = running.evidence
        cause = done.external_cause and self._with_host(node, done.external_cause)
        results = tuple((_dated(each.at, running.began, at), each.result) for each in done.results)
        node.report = NodeReport(results, cause)
        evidence.reported.append(node)
        evidence.succeeded.discard(node)
        failed: ReasonToStop | None = next(
            (result for _, result in results if not result.exit_status.succeeded), None
        )
        if running.work_is_done:
            failed = None
        if evidence.first is None and not (cause or failed):
            _add_exits(running, node.ranks, at)
        if done.lease_expired and self._outlives(node):
            failed = self._loss(node, LEASE_OVER)
            evidence.expired_leases.append(failed)
        self._stop(running, cause or failed, node.hello.host, at)
        return self._end_if_all_have_reported(running, at)

    def _stop(
        self,
        running: Running,
        cause: ReasonToStop | None,
        host: str,
        at: float,
        *,
        at_once: bool = False,
    ) -> Running:
        """Stop the workers of all nodes, once; ``at_once``: kill them, also while they stop.

        ``host`` has reported the cause; None: there is none.
        """
        evidence = running.evidence
        if cause is None or (evidence.first is not None and (running.is_killed or not at_once)):
            return running
        evidence.first, running.is_killed = evidence.first or cause, at_once
        if not self.settings.job.failures.pdb:
            grace = 0.0 if at_once else self.settings.job.failures.shutdown_timeout
            running.overdue_at = min(running.overdue_at, at + grace + SECONDS_TO_REPORT)
        running.hangs.end_attempt()
        why = notices.why_all_stop(cause, host)
        external = cause if isinstance(cause, ExternalCause) else None
        lets_saved_ranks_exit = isinstance(cause, Suspended | NotSuspended)
        order = messages.Stop(running.attempt, why, external, at_once, lets_saved_ranks_exit)
        self.members.send([each for each in self.members.places if each.is_reachable], order)
        return running

    def _note_no_restart(self, running: Running, node: Node, cause: ExternalCause) -> None:
        """Print where a signal came that it prevents the restart for which all nodes are stopping."""
        first, known = running.evidence.first, running.evidence.external
        if (
            not isinstance(cause, Interrupted)
            or not isinstance(first, WorkerResult)
            or cause in known
        ):
            return
        if self._may_restart(WorkerFailed(first)):
            self.members.note(notices.no_restart(cause.number), [node])

    def _with_host(self, node: Node, cause: ExternalCause) -> ExternalCause:
        """Add the member's host to what other nodes would otherwise take for their own."""
        if isinstance(cause, HelperFailed) and len(self.members.places) > 1:
            # The name may be as long as a line already.
            return replace(cause, name=as_line(f"{cause.name} on {node.hello.host}"))
        return cause

    def _end_if_all_have_reported(self, running: Running, at: float) -> State:
        evidence = running.evidence
        ended = len(evidence.reported) + len(evidence.lost) + len(evidence.finished)
        if ended < len(self.members.places):
            next_notice = min(running.next_notice, at + SECONDS_BETWEEN_STOP_NOTICES)
            running.next_notice = next_notice if evidence.reported else NEVER
            return running
        why, no_restart = evidence.reason(), ""
        if isinstance(why, WorkerFailed) and running.exits is not None:
            earlier = running.exits.before(why.cause, evidence.failed_at(why.cause))
            why = replace(why, earlier=earlier)
        if running.work_is_done and isinstance(why, WorkerFailed):
            # A service failed before it knew that it was to end.
            why = Succeeded()
        if not isinstance(why, ReasonToRestart) or not self._may_restart(why):
            if isinstance(why, Hung) and self.settings.job.failures.on_hang is OnHang.RESTART:
                # The report of a failed worker says it all; that of a hang does not.
                most = self.settings.job.failures.max_restarts
                no_restart = f"no restart is left (--max-restarts {most})"
            return self._end(running, why, no_restart)
        if external_cause := evidence.external_cause():
            # It came when all nodes were stopping already, and keeps them from going on.
            return self._end(running, external_cause)
        return self._reform(running, why, at)

    def _may_restart(self, why: ReasonToRestart) -> bool:
        """Return whether an attempt that ended so may be followed by another, as the options say."""
        if isinstance(why, NodeLost):
            return self.settings.job.survives_node_loss and why.node_rank > 0
        acts = isinstance(why, WorkerFailed) or self.settings.job.failures.on_hang is OnHang.RESTART
        return acts and self._restarts.one_is_left

    def _response_to_hang(self) -> HangResponse:
        # A suspension has its own time limit, and a rank that saves may print nothing.
        if self.settings.job.failures.on_hang is OnHang.REPORT or self._suspension.goes_on:
            return HangResponse.REPORT
        return HangResponse.RESTART if self._may_restart(Hung(0.0, (), "")) else HangResponse.STOP

    def _suspension_wanted(self, state: State, node: Node, by: str, at: float) -> State:
        again = self._suspension.wanted(by, node, at)
        if isinstance(state, Running) and state.evidence.first is None:
            if again:
                return self._stop(state, self._suspension.asked_again(at), self.own_hello.host, at)
            self._suspend(state, at)
        return state

    def _suspend(self, running: Running, at: float) -> None:
        services = running.services
        ended = (
            running.evidence.some_have_ended if services is None else services.some_ranks_have_ended
        )
        self._suspension.begin(at, some_have_ended=ended)

    def _paused(self, node: Node, at: float, *, paused: bool) -> None:
        """Print which node the job waits for; members must not wait for a paused node 0."""
        node.paused = paused
        if paused:
            node.paused_at = at
        elif isinstance(self.state, Running):
            # It has as long as the others to report its end.
            self.state.overdue_at += at - node.paused_at
        then = "is paused: the job waits until it is continued" if paused else "continues"
        if paused and self.settings.job.survives_node_loss:
            # Of node 0 all others' leases end.
            longest = self.settings.rhythm.after(FORK_SERVER_KILL_INTERVALS)
            then += f"; if that takes longer than {longest:.0f} s, all workers start again"
        text = f"node {node.rank} ({node.hello.host}) {then}"
        if paused:
            # A node may do so again and again.
            node.pause_is_printed = at >= node.next_pause_notice
        if paused and node.pause_is_printed:
            node.next_pause_notice = at + SECONDS_BETWEEN_PAUSE_NOTICES
        if node is not self.members.own and self._is_large:
            # Without a look at each member: a scheduler may stop all nodes at once.
            self.members.note(text, None if node.pause_is_printed else ())
            return
        everyone = (*self.members.places, *self.members.waiting)
        others = [each for each in everyone if each is not node]
        if node is self.members.own:
            self.members.send(others, messages.Paused(paused))
            # Their next heartbeats, and new leases, come before the next attempt.
            self._settle_later(at)
        if node.pause_is_printed:
            self._notify(others, text)

    def _notify(self, nodes: Iterable[Node], text: str) -> None:
        if self._is_large:
            nodes = [each for each in nodes if each is self.members.own]
        self.members.note(text, nodes)

    @property
    def _is_large(self) -> bool:
        return self.size > FEW_NODES

    def _disconnect(self, nodes: Iterable[Node]) -> None:
        connections = tuple(each.connection for each in nodes)
        if connections:
            self.members.out.append(Disconnect(connections))

    # Queries, and stacks that node 0 prints by itself.

    def _query(
        self, state: State, node: Node, message: Query | Answer | messages.RequestStacks, at: float
    ) -> State:
        """Take a question about the job, or a node's answer to one."""
        match message:
            case Query():
                self._queries.asked(node, message, at)
            case Answer():
                if not self._queries.answered(node, message):
                    self._drop(node, message)
                return self._take_answers(state, at)
            case messages.RequestStacks() if self._lines.is_spent(node.address, at):
                pass
            case messages.RequestStacks() if isinstance(state, Running):
                # A user of node 0 sees that agent's notice.
                on_host = f"SIGQUIT on {node.hello.host}: {STACKS_FOLLOW}; the job keeps running"
                if node is not self.members.own and not state.hangs.prints_stacks:
                    self.members.note(on_host)
                state.hangs.collect(at)
        return state

    def _take_answers(self, state: State, at: float) -> State:
        """Go on with what the coordinator itself has asked, if all answers have come."""
        if not isinstance(state, Running):
            return state
        return self._stop(state, state.hangs.answered(at), self.own_hello.host, at)

    # Time passes.

    def _time_passed(self, at: float) -> State:
        match self.state:
            case Gathering() as gathering:
                return self._time_passed_while_gathering(gathering, at)
            case Running() as running:
                return self._time_passed_while_running(running, at)
            case Restarting() as reforming if at >= reforming.recheck_at:
                reforming.recheck_at = NEVER
                return self._look_again(reforming, at)
            case Restarting() as reforming if at >= reforming.rejoin_ends:
                return self._end_for(reforming, self._places.why_empty())
            case _:
                return self.state

    def _time_passed_while_gathering(self, gathering: Gathering, at: float) -> State:
        if self.own_hello.fault:
            return self._refuse_unfit(gathering, self.members.own, at)
        if at >= gathering.settled_at:
            return self._begin_if_complete(gathering, at)
        if at >= gathering.given_up_at:
            return self._give_up(gathering.nodes_missing(self._refused))
        if at >= gathering.next_notice:
            gathering.next_notice = at + joining.SECONDS_BETWEEN_NOTICES
            self._notify(self.members.by_connection.values(), gathering.waits(at))
        return gathering

    def _time_passed_while_running(self, running: Running, at: float) -> State:
        evidence, own = running.evidence, self.own_hello.host
        if running.hangs.time_passed(at):
            return running
        if evidence.first is None and (end := self._suspension.time_passed(at)):
            return self._stop(running, end, own, at)
        services = running.services
        if services is not None and evidence.first is None and at >= services.due:
            self._notify(self.members.places, services.waits(at))
        if at >= running.overdue_at:
            return self._lose_overdue(running, at)
        if running.exits is not None and at >= self._exits_due(running):
            for notice in running.exits.notices(at):
                self.members.note(notice)
        if at >= running.next_notice:
            running.next_notice = at + SECONDS_BETWEEN_STOP_NOTICES
            gone = {*evidence.reported, *evidence.lost, *evidence.finished}
            busy = listed(each.hello.host for each in self.members.places if each not in gone)
            text = f"all workers of this node have exited; still running: {busy}"
            self._notify(self._without_own_named(running), text)
        return running

    def _exits_due(self, running: Running) -> float:
        """Return when to name ranks that have exited with 0; NEVER while all are to end."""
        ends = running.evidence.first or running.work_is_done or self._suspension.goes_on
        return NEVER if ends or running.exits is None else running.exits.due

    def _without_own_named(self, running: Running) -> list[Node]:
        """Return the nodes whose workers have ended; not node 0, if it has named these ranks already."""
        evidence, exits = running.evidence, running.exits
        knows = exits is not None and exits.are_reported and evidence.first is None
        return [each for each in evidence.reported if not (knows and each is self.members.own)]

    # Nodes are lost.

    def _gone(self, node: Node | None, gone: events.MemberDisconnected) -> State:
        """Take note that the connection to a member is closed."""
        state = self.state
        match state:
            case _ if node is None:
                return state
            case Gathering():
                self._remove(state, node, "has disconnected", gone.at)
                return state
            case Over():
                # A user may still look at what the workers of another node have left.
                node.here = False
                self._queries.lost(node)
                return state
            case _ if node.rank is None:
                return self._waiting_node_lost(
                    state, node, "has left", gone.at, has_ended=gone.has_ended
                )
            case _:
                if gone.has_ended:
                    self.grants.has_ended(node.connection)
                how = self._silence if gone.is_unreachable else None
                return self._lost(state, node, gone.at, how=how, is_silent=gone.is_unreachable)

    @property
    def _silence(self) -> str:
        return silence(self.settings.member_silence)

    def _outlives(self, node: Node) -> bool:
        """Return whether the job may go on without this node."""
        return self.settings.job.survives_node_loss and node is not self.members.own

    def _silent(self, node: Node | None, connection: int, at: float) -> State:
        """Take note that a member is silent for too long."""
        state = self.state
        match state:
            case Gathering() if node is not None and node is not self.members.own:
                self._remove(state, node, self._silence, at)
                self._disconnect([node])
            case Running() | Restarting() if node is not None and node.rank is None:
                state = self._waiting_node_lost(state, node, self._silence, at, has_ended=False)
                self._give_node_up(node, self._silence)
            case Running() | Restarting() if node is not None:
                return self._lose(state, node, self._silence, at, is_silent=True)
            case _:
                self.members.out.append(Disconnect((connection,)))
        return state

    def _lose(
        self,
        state: Running | Restarting,
        node: Node,
        how: str,
        at: float,
        *,
        is_silent: bool = False,
    ) -> State:
        """Go on without a node that does not do its part, and is connected still."""
        if self._outlives(node):
            self._give_node_up(node, how)
        else:
            # It may be frozen, and continue later: then it finds all that is sent to the others.
            node.may_continue = node.may_continue or node.lost is None
        return self._lost(state, node, at, how=how, is_silent=is_silent)

    def _give_node_up(self, node: Node, why: str) -> None:
        """Let a node know, if it continues, that the job goes on without it."""
        self.members.send([node], messages.GivenUp(as_line(why)))
        self._disconnect([node])

    def _lost(
        self,
        state: Running | Restarting,
        node: Node,
        at: float,
        *,
        how: str | None = None,
        is_silent: bool = False,
    ) -> State:
        """Take note that a node with a place is lost: it is so once, and for its first reason.

        ``how``: None: its connection has ended.
        """
        if node.lost is None:
            node.here, node.lost = False, self._loss(node, how)
            self.members.lost.append(node)
            if isinstance(state, Running):
                state.hangs.lost(node)
            self._queries.lost(node)
            if is_silent:
                self._settle_later(at)
            if isinstance(state, Running) and node.report is None:
                return self._lost_while_it_ran(state, node, node.lost, at, is_silent=is_silent)
        return self._look_again(state, at) if isinstance(state, Restarting) else state

    def _loss(self, node: Node, how: str | None) -> NodeLost:
        is_task = self.settings.job.tasks is not None
        lost = NodeLost(node.rank or 0, node.hello.host, is_task=is_task)
        return lost if how is None else replace(lost, how=as_line(how))

    def _lost_while_it_ran(
        self, running: Running, node: Node, lost: NodeLost, at: float, *, is_silent: bool
    ) -> State:
        if self.settings.job.survives_node_loss:
            self.grants.lost(node.connection)
        evidence = running.evidence
        if not is_silent and at - self._stopped.at <= self.settings.rhythm.interval:
            # It has given up this node, which was stopped.
            how = f"was stopped for {self._stopped.seconds:.0f} s"
            evidence.stopped = evidence.stopped or self._loss(self.members.own, how)
        evidence.lost.append(node)
        last_sent = at - (self.settings.member_silence if is_silent else 0.0)
        evidence.lost_at = min(evidence.lost_at, last_sent)
        self._stop(running, evidence.stopped or lost, node.hello.host, at)
        return self._end_if_all_have_reported(running, at)

    def _lose_overdue(self, running: Running, at: float) -> State:
        """Give up nodes that have not reported the end of their workers long after they were told to stop.

        A paused one may report when it continues.
        """
        gone, state = {*running.evidence.reported, *running.evidence.lost}, self.state
        late = [it for it in self.members.places if it not in gone and it is not self.members.own]
        has_paused = any(it.paused for it in late)
        running.overdue_at = at + SECONDS_TO_REPORT if has_paused else NEVER
        for each in late:
            if not each.paused and isinstance(state, Running):
                state = self._lose(state, each, "has not ended its workers", at)
        return state

    def _waiting_node_lost(
        self, state: State, node: Node, why: str, at: float, *, has_ended: bool
    ) -> State:
        """Take note that a member without a place is lost; ``has_ended``: it is known to have ended."""
        self.members.remove(node)
        self.members.waiting.remove(node)
        node.here = False
        if not has_ended:
            self._settle_later(at)
        self.members.print(f"{process(node.hello)}, which waited for a place, {why}")
        return self._look_again(state, at) if isinstance(state, Restarting) else state

    def _waiting_node_ends(self, node: Node, cause: ExternalCause, at: float) -> State:
        """Let a node go whose user has ended it, as one may end a node that never had a place."""
        self.members.send([node], messages.Verdict(cause, ""))
        self._disconnect([node])
        return self._waiting_node_lost(self.state, node, "has left", at, has_ended=True)

    def _settle_later(self, at: float) -> None:
        self._settles_at = at + HEARTBEATS_TO_SETTLE * self.settings.rhythm.interval

    # Between two attempts.

    def _reform(self, running: Running, why: ReasonToRestart, at: float) -> State:
        """Begin the next attempt as soon as all its places are taken, or end the job."""
        restarts, places = self._restarts, self._places
        restarts.ended(why)
        if no_restart := self._why_no_places() or restarts.why_not():
            return self._end_for(running, no_restart)
        pause, patience = restarts.begin(), places.patience
        state = Restarting(running.attempt, NEVER, not_before=at + pause)
        state.rejoin_ends = at + pause + patience if patience else NEVER
        self._settle(state, at)
        if isinstance(why, WorkerFailed) and self.settings.job.join.check:
            self._check(state, why.cause)
        if pause:
            quick = f"within 10 s of their start {restarts.quick} times in a row"
            self.members.note(f"restarting in {pause:g} s, since workers have failed {quick}")
        return self._go_on(state)

    def _check(self, state: Restarting, cause: WorkerResult) -> None:
        """Have the node check itself whose worker has failed."""
        for each in self.members.present:
            if each.owns((cause.rank,)):
                state.checks, state.rejoin_ends = each, NEVER
                self.members.send([each], messages.CheckNode())

    def _checked(self, state: State, node: Node, fault: str, at: float) -> State:
        """Go on once a node has checked itself: without it, if it may not work."""
        if not isinstance(state, Restarting) or node is not state.checks:
            return state
        self._end_check(state, at)
        if not fault:
            return self._go_on(state)
        node.hello = replace(node.hello, fault=fault)
        self._restarts.fails_check()
        node.lost = self._loss(node, f"fails its check: {fault}")
        if node is self.members.own or not self.settings.job.survives_node_loss:
            self.members.lost.append(node)
            return self._end_for(state, "")
        self.members.send(
            [node], messages.Verdict(self._restarts.ended_by, notices.lost(node.lost))
        )
        self._disconnect([node])
        # All of its workers have ended.
        node.here = False
        self.members.lost.append(node)
        self._queries.lost(node)
        return self._look_again(state, at)

    def _end_check(self, state: Restarting, at: float) -> None:
        state.checks = None
        if self._places.patience:
            state.rejoin_ends = max(at, state.not_before) + self._places.patience

    def _why_no_places(self) -> str:
        """Return why the lost nodes end the job; "" if they do not."""
        if why := self._places.why_not():
            return why
        may_stay_empty = self._places.patience > 0
        return "" if may_stay_empty or self._places.next() else self._places.why_empty()

    def _settle(self, state: Restarting, at: float) -> None:
        """Begin no attempt before all members that were cut off together have been found silent.

        Nor while a worker of one that is lost may run.
        """
        settled = max(state.not_before, self._settles_at, self.grants.begins_after)
        state.recheck_at = settled if at < settled else NEVER

    def _look_again(self, state: Restarting, at: float) -> State:
        """Begin the next attempt, or end the job, now that another member is lost."""
        if state.checks is not None and not state.checks.here:
            self._end_check(state, at)
        if no_restart := self._why_no_places():
            return self._end_for(state, no_restart)
        self._settle(state, at)
        return self._go_on(state)

    def _go_on(self, state: Restarting) -> State:
        """Begin the next attempt if all its places are taken, and there is no pause or check."""
        may_begin = state.recheck_at == NEVER and state.checks is None
        if may_begin and self._places.next():
            self.members.out.append(PreparePort())
        return state

    def _begin(self, state: Restarting, port: int, at: float) -> State:
        """Begin the next attempt on all nodes; its workers meet at ``port``."""
        members, why, places = self.members, self._restarts.ended_by, self._places.next()
        if places is None:
            raise AssertionError("all places are taken")
        chosen, attempt = set(places), state.attempt + 1
        progress = self._places.count_losses(places, self._restarts.count)
        self._forget_lost()
        members.waiting = [each for each in members.waiting if each not in chosen]
        knew = {each for each in places if each.had_rank}
        running = self._enter(places, attempt, at)
        host = self.own_hello.host
        for each, world in zip(places, self._worlds(running, port), strict=True):
            order = messages.NextAttempt(world, why, progress)
            members.send([each], order if each in knew else messages.WorldFormed(world, host))
        # A request that came before holds for the attempt that begins.
        self._suspend(running, at)
        return running

    def _forget_lost(self) -> None:
        """Begin without the lost nodes."""
        members = self.members
        self._disconnect(members.lost)
        for each in members.lost:
            members.remove(each)
        members.lost = []
        self.grants.begin()

    # The end.

    def _end_for(self, state: Running | Restarting, no_restart: str) -> Over:
        """End the job although what ended the last attempt allows another; ``no_restart`` says why."""
        unfit = (each.lost for each in self.members.lost if each.lost and each.hello.fault)
        reasons = (*map(notices.lost, unfit), no_restart)
        return self._end(state, self._restarts.ended_by, as_line("; ".join(filter(None, reasons))))

    def _end(self, state: Running | Restarting, why: Reason, no_restart: str = "") -> Over:
        """Send the verdict to all members, also to those that wait for a place."""
        members = self.members
        if isinstance(why, HelperFailed) and self._restarts.one_is_left:
            no_restart = as_line(f"no other attempt can start without its {why.name}")
        reached = [each for each in members.places if each.is_reachable]
        members.send([*reached, *members.waiting], messages.Verdict(why, no_restart))
        # The other members disconnect once they have the verdict.
        self._disconnect([each for each in members.lost if each.may_continue])
        return Over(state.attempt)


def _dated(at: float | None, began: float, now: float) -> float:
    """Return when a worker failed, by this clock: in the attempt that has begun then.

    ``at`` None: its node does not know the difference yet.
    """
    return now if at is None else min(max(at, began), now)


def _clean_exits(programs: Iterable[NumberedProgram]) -> "CleanExits":
    # A job of one rank needs none.
    from clusterrun.policy.clean_exits import CleanExits

    return CleanExits(programs)


def _add_exits(running: Running, numbers: Iterable[int], at: float) -> None:
    """Take note that workers, by their numbers in the job, have exited with 0."""
    if running.exits is not None:
        running.exits.add(numbers, at)


def _without_helper(cause: HelperFailed) -> str:
    """Return how a node is lost that can start no worker any more."""
    return f"has lost its {cause.name}, which {cause.how}"


def _service_progress(
    services: "Sequence[Service]", programs: tuple[ProgramWorld, ...], at: float
) -> "ServiceProgress":
    # Few jobs have some.
    from clusterrun.policy.service_progress import ServiceProgress

    return ServiceProgress(services, programs, at)
