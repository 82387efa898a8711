"""The coordinator, which decides for the whole job, and its four states.

    Gathering --all have joined--> Running --attempt ends--> Restarting --enough nodes--> Running
        |                             |                          |
        +--------- mismatch ----------+--------- verdict --------+---------> Finished

``Coordinator.handle`` handles an event and returns the actions that follow, in order. Each handler returns
the next state; only ``handle`` assigns it. The cost of an event does not grow with the number of nodes,
unless something is sent to all of them.
"""

from collections.abc import Iterable
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
from clusterrun.policy.assignment import RankAssignment, assign_programs, elastic_size, worlds
from clusterrun.policy.cause import FailureEvidence, ReasonToStop
from clusterrun.policy.hangs import STACKS_FOLLOW, HangResponse, HangWatch
from clusterrun.policy.job_events import (
    Action,
    CoordinatorEvent,
    Disconnect,
    PreparePort,
    StopListening,
)
from clusterrun.policy.joining import Gathering, Rejection
from clusterrun.policy.leases import FORK_SERVER_KILL_INTERVALS, GrantedLeases
from clusterrun.policy.members import LOCAL_CONNECTION, Members, Node, NodeReport
from clusterrun.policy.messages import AgentMessage, AttemptMessage, Hello
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
    from clusterrun.policy.clean_exits import CleanExits
    from clusterrun.policy.service_progress import ServiceProgress

MAX_NODES_NOTIFIED = 8
"""In jobs of at most this many nodes each node prints what the job waits for; in larger ones only node 0."""

SECONDS_BETWEEN_STOP_NOTICES = 60.0
"""For notices on nodes whose workers have ended while others run."""

HEARTBEATS_TO_SETTLE = 1.2
"""Members that are cut off together are found silent within one heartbeat interval."""

MAX_REFUSALS_PRINTED = 16
"""Lines on node 0, which a port scanner must not flood."""

SECONDS_TO_REPORT = 20.0
"""After the grace period. An agent whose workers SIGKILL does not end reports within 14 s."""

SECONDS_BETWEEN_PAUSE_NOTICES = 10.0
"""For notices about pauses of the same node."""

LEASE_EXPIRED = "was stopped, or cut off, for too long: its workers' lease had expired"
"""Why an attempt ended on a node that is still a member."""


class Running(Struct):
    """An attempt, from the first worker to the last report."""

    attempt: int
    began: float
    hangs: HangWatch
    evidence: FailureEvidence = field(default_factory=FailureEvidence)
    next_notice: float = NEVER
    overdue_at: float = NEVER
    """When nodes that were told to stop, but have not reported, are declared lost."""
    is_killed: bool = False
    """All nodes were told to kill their workers."""
    programs: tuple[ProgramWorld, ...] = ()
    services: "ServiceProgress | None" = None
    """None: the job has no services."""
    exits: "CleanExits | None" = None
    """None: the job has one rank, so no rank waits for another."""

    @property
    def work_is_done(self) -> bool:
        """Whether only services that are to stop still run."""
        return self.services is not None and self.services.work_is_done

    def add_exits(self, numbers: Iterable[int], at: float) -> None:
        """Record that workers, by their numbers in the job, have exited with 0."""
        if self.exits is not None:
            self.exits.add(numbers, at)


class Restarting(Struct):
    """All workers have ended; the next attempt begins when enough nodes are present."""

    attempt: int
    """The attempt that has ended."""
    recheck_at: float
    """When the next attempt may begin at the earliest; NEVER: as soon as enough nodes are present."""
    not_before: float = 0.0
    """When the delay before the next attempt ends."""
    rejoin_ends: float = NEVER
    """When the job ends if too few nodes are present; NEVER: it does not wait for nodes."""
    checking: Node | None = None
    """The node that runs its check; the next attempt waits for it."""


class Finished(Struct):
    """The job has ended, or cannot begin."""

    attempt: int
    informed: int = 1
    """If the job cannot begin: the number of nodes that have been told why."""
    rejection: Rejection | None = None
    """Why the job cannot begin; None: it has begun."""


State = Gathering | Running | Restarting | Finished


class Coordinator:
    """Decides for the whole job, from its first node to its end."""

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
            port: the workers' master port in the first attempt.
            at: now, in seconds of the coordinator's clock.
            has_token: joining nodes have proved that they hold the job's token.

        """
        self.settings = settings
        self.members = members = Members(Node(LOCAL_CONNECTION, hello))
        self.grants = GrantedLeases(settings.rhythm)
        self.state: State = Gathering(settings, members, at, has_token=has_token)
        self.port = port
        """The workers' master port in the first attempt."""
        self._assignment = RankAssignment(members, settings)
        self._restarts = Restarts(settings.job.failures)
        self._suspension = Suspension(members, settings.job.suspending)
        self._queries = QueryRounds(members, self._suspension)
        self._settles_at = 0.0
        """When all members that were cut off together with a silent one will have been found silent."""
        self._stopped = events.NodeZeroWasStopped(0.0, -NEVER)
        """The last time at which node 0's own agent was stopped for long."""
        self._lines = LineLimit()
        """Limits the lines that each member's address causes."""
        self._refused: list[str] = []
        """The first few refusals, each of which was printed."""

    # Public.

    def handle(self, event: CoordinatorEvent) -> list[Action]:
        """Handle an event; return the actions that follow, in order."""
        sender = self._sender(event)
        self.state = self._handle(event)
        out, self.members.out = self.members.out, []
        return [each for each in out if not sender or self._is_allowed(each, sender, event.at)]

    def _sender(self, event: CoordinatorEvent) -> str:
        """Return the address of the member that caused an event; "": none, or node 0's own agent."""
        match event:
            case events.HelloReceived(address=address):
                return address
            case events.MessageReceived(connection) | events.MemberDisconnected(connection):
                node = self.members.find(connection)
                return "" if node is None else node.address
            case _:
                return ""

    def _is_allowed(self, action: Action, sender: str, at: float) -> bool:
        """Return False for a line to print if a member has caused too many."""
        is_line = isinstance(action, events.PrintOnNodeZero) or (
            isinstance(action, events.Send) and isinstance(action.message, messages.Notice)
        )
        return not is_line or self._lines.allows(sender, at)

    @property
    def due(self) -> float:
        """When to handle ``TimePassed``."""
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
            case Restarting() as restarting:
                at = min(restarting.recheck_at, restarting.rejoin_ends)
            case Finished():
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
        """The number of participants; before the job begins, of expected nodes."""
        return len(self.members.participants) or self.settings.nodes

    @property
    def attempt(self) -> int:
        """The number of the current attempt, or of the last one; 0 before the first one."""
        return 0 if isinstance(self.state, Gathering) else self.state.attempt

    @property
    def all_are_informed(self) -> bool:
        """Whether all nodes have been told why the job cannot begin."""
        return isinstance(self.state, Finished) and self.state.informed >= self.settings.nodes

    def is_paused(self, connection: int) -> bool:
        """Return whether a member is paused, so sends nothing until it continues."""
        node = self.members.find(connection)
        return node is not None and node.paused

    def is_lost(self, connection: int) -> bool:
        """Return whether a member is a lost participant."""
        node = self.members.find(connection)
        return node is not None and node.lost is not None

    def _handle(self, event: CoordinatorEvent) -> State:
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
                return self._hello_received(node, at)
            case events.MessageReceived(connection, message, at):
                return self._message_received(
                    self.members.find(connection), connection, message, at
                )
            case events.MemberDisconnected(connection, refused, at):
                self._print_refusal(refused)
                return self._member_disconnected(self.members.find(connection), event)
            case events.MemberSilent(connection, at):
                return self._member_silent(self.members.find(connection), connection, at)
            case events.NodeZeroWasStopped(seconds):
                self._stopped = event
                if isinstance(self.state, Running):
                    # Other nodes may have been stopped as well: they keep their time to report.
                    self.state.overdue_at += seconds
                return self.state
            case events.TimePassed(at):
                if at >= self._queries.due:
                    self._queries.time_passed(at)
                    return self._evaluate_answers(self.state, at)
                return self._time_passed(at)
            case events.PortReady(port, at) if isinstance(self.state, Restarting):
                return self._begin_next_attempt(self.state, port, at)
            case events.PortReady():
                return self.state
            case events.JoinAbandoned(why, _, hint):
                return self._refuse_all(Rejection(why, hint))
            case _:
                assert_never(event)

    # Nodes join.

    def _count_callers(self, change: int) -> None:
        if isinstance(self.state, Gathering):
            self.state.callers += change

    def _hello_received(self, node: Node, at: float) -> State:
        gathering = self.state
        if not isinstance(gathering, Gathering):
            return self._join_running_job(node)
        if former := gathering.find_agent(node.hello.identity):
            if node.connection < former.connection:
                # An older connection of the same agent, whose Hello was delayed.
                self._disconnect([node])
                return gathering
            self._disconnect([former])
            self._remove_member(gathering, former, "has connected again", at)
        return self._join(gathering, node, at)

    def _join(self, gathering: Gathering, node: Node, at: float) -> State:
        """Let a node join, refuse it, or end the job because of it."""
        settings, own, joiner = self.settings, self.own_hello, node.hello
        if rejection := joining.rejection(settings, own, joiner):
            return self._refuse(node, rejection)
        mismatch = joining.mismatch(settings, own, joiner) or gathering.conflict(joiner)
        if mismatch is None:
            if joiner.fault:
                return self._refuse_failed_check(gathering, node, at)
            return self._admit(gathering, node, at)
        stale = gathering.stale_agent(node)
        if stale is node:
            return self._refuse(node, joining.STALE_AGENT)
        if stale is not None:
            self._send_refusal([stale], joining.STALE_AGENT)
            self._disconnect([stale])
            why = f"is refused: {joining.STALE_AGENT.notice}"
            self._remove_member(gathering, stale, why, at)
            return self._join(gathering, node, at)
        if gathering.has_token:
            return self._refuse_all(mismatch, joiner=node)
        # Without a token any program that can reach the port could end the job with a mismatch.
        return self._refuse(node, mismatch)

    def _refuse_failed_check(self, gathering: Gathering, node: Node, at: float) -> State:
        """Refuse a node that fails its check; end the job if too few others are left."""
        why, refused = joining.failed_check(node.hello), len(gathering.failed_checks)
        if gathering.add_failed_check(node.hello, at):
            self._refuse(node, why)
            return self._begin_if_complete(gathering, at)
        return self._refuse_all(why, node, refused)

    def _admit(self, gathering: Gathering, node: Node, at: float) -> State:
        own, joiner = self.own_hello, node.hello
        gathering.admit(node, at)
        name = joining.first_difference(own.should, joiner.should)
        if name and not gathering.has_warned:
            gathering.has_warned = True
            self.members.print(f"warning: {notices.disagreement(name, own, joiner)}")
        return self._begin_if_complete(gathering, at)

    def _join_running_job(self, node: Node) -> State:
        """Let a node join a running job, in which it waits for a rank."""
        state, settings, own = self.state, self.settings, self.own_hello
        rejection = (
            joining.rejection(settings, own, node.hello)
            or self._why_too_late()
            or joining.mismatch(settings, own, node.hello)
            or (joining.failed_check(node.hello) if node.hello.fault else None)
        )
        if rejection is not None:
            return self._refuse(node, rejection)
        self.members.add(node)
        self.members.waiting.append(node)
        self.members.send([node], messages.KeepWaiting(own.host))
        if self._suspension.is_possible:
            self.members.send([node], messages.SuspensionPossible())
        self.members.print(f"{process(node.hello)} has joined and {self._waiting_notice()}")
        return self._start_if_ready(state) if isinstance(state, Restarting) else state

    def _waiting_notice(self) -> str:
        """Return when the newest waiting node will get a rank."""
        present, waiting = len(self.members.present), len(self.members.waiting)
        is_elastic = self.settings.job.is_elastic
        if is_elastic and elastic_size(present + waiting, self.settings) > present:
            return "joins when all workers restart"
        return "waits to take the place of a lost node"

    def _why_too_late(self) -> Rejection | None:
        """Return why no node can join the job any more; None if one may wait for a rank."""
        settings, endpoint = self.settings, self.settings.endpoint
        if isinstance(self.state, Finished):
            if why := self.state.rejection:
                return replace(why, notice="")
            return Rejection(f"the job at {endpoint} has ended", "", "the job has ended")
        if settings.job.survives_node_loss:
            # Each node may come back once at a time.
            most = max(self.size + settings.elasticity.spares, settings.job.nnodes)
            if len(self.members.waiting) < most:
                return None
            names = listed(each.hello.host for each in self.members.waiting)
            text = f"enough nodes are already waiting to join the job at {endpoint}: {names}"
            return Rejection(text, "", f"{most} nodes are already waiting")
        hosts = listed(each.hello.host for each in self.members.participants)
        text = f"the job at {endpoint} has all its {self.size} nodes: {hosts}"
        return Rejection(text, "", f"all {self.size} nodes have joined")

    def _refuse(self, node: Node, why: Rejection) -> State:
        if isinstance(self.state, Finished):
            self.state.informed += 1
        self._send_refusal([node], why)
        self._disconnect([node])
        notice = why.text if why.notice is None else why.notice
        if notice:
            self._print_refusal(f"{process(node.hello)} at {node.address}: {notice}")
        return self.state

    def _send_refusal(self, nodes: Iterable[Node], why: Rejection) -> None:
        self.members.send(
            nodes, messages.Refused(why.refusal, as_line(why.text), as_text(why.hint))
        )

    def _print_refusal(self, text: str) -> None:
        """Print a refusal, unless it is empty or was printed before."""
        if text and text not in self._refused and len(self._refused) < MAX_REFUSALS_PRINTED:
            self._refused.append(text)
            self.members.print(f"refused {text}")

    def _remove_member(self, gathering: Gathering, node: Node, why: str, at: float) -> None:
        gathering.remove(node, at)
        self.members.print(f"{process(node.hello)} {why}")

    def _refuse_all(self, why: Rejection, joiner: Node | None = None, informed: int = 0) -> State:
        """End the job before it begins.

        Args:
            why: what all nodes print.
            joiner: the node that is the reason; others may still connect, and are told then.
            informed: the number of nodes that were told before and are not members.

        """
        if not isinstance(self.state, Gathering):
            return self.state
        everyone = dict.fromkeys((*self.members.by_connection.values(), joiner or self.members.own))
        self._send_refusal(everyone, why)
        self._disconnect([each for each in everyone if each is not self.members.own])
        return Finished(0, self.settings.nodes if joiner is None else len(everyone) + informed, why)

    def _begin_if_complete(self, gathering: Gathering, at: float) -> State:
        """Begin the job if all nodes have joined, or the last call has ended."""
        if at < gathering.starts_at:
            return gathering
        nodes, settings = gathering.by_rank(), self.settings
        if not any(each.hello.workers for each in nodes):
            return self._refuse_all(joining.NO_WORKER)
        if not settings.keeps_rendezvous_port:
            # The workers get this port, so it must be free before any node starts one.
            self.members.out.append(StopListening())
        if len(nodes) != settings.nodes:
            self.members.print(gathering.starts_without())
        size = settings.nodes - settings.elasticity.spares
        participants, self.members.waiting = nodes[:size], nodes[size:]
        running = self._start_attempt(participants, 0, at)
        host = self.own_hello.host
        for each, world in zip(participants, self._worlds(running, self.port), strict=True):
            self.members.send([each], messages.WorldFormed(world, host))
        for each in self.members.waiting:
            self.members.send([each], messages.KeepWaiting(host))
        return running

    # An attempt runs.

    def _start_attempt(self, participants: list[Node], attempt: int, at: float) -> Running:
        """Assign ranks and reset what belongs to an attempt; return the new state."""
        first = 0
        for rank, node in enumerate(participants):
            node.rank, node.first_rank, node.had_rank = rank, first, True
            first += node.hello.workers
        for each in self.members.by_connection.values():
            each.failure = each.report = None
        self.members.participants = participants
        self._suspension.begin_attempt(attempt)
        job, programs = self.settings.job, tuple[ProgramWorld, ...]()
        if job.services:
            names = (MAIN, *(each.name for each in job.services))
            programs = assign_programs(participants, names, self.settings.host.value)
        numbered = (each.numbered for each in programs)
        hangs = HangWatch(self.members, self._queries, job, numbered, self._response_to_hang)
        running = Running(attempt, at, hangs, programs=programs)
        if first > 1:
            hangs.watch_nccl(at)
        if job.services or first > 1:
            # Not imported for a job of one rank.
            from clusterrun.policy.clean_exits import CleanExits

            of_worlds = {MAIN, *(each.name for each in job.services if each.world)}
            of_several = [each.numbered for each in programs if each.name in of_worlds]
            running.exits = CleanExits(of_several or [NumberedProgram(MAIN, 0, first)])
        if job.services:
            from clusterrun.policy.service_progress import ServiceProgress

            running.services = ServiceProgress(job.services, programs, at)
        return running

    def _worlds(self, running: Running, port: int) -> list[World]:
        """Return each node's world in the attempt that begins, by rank."""
        master = self.settings.host.value, port
        run_id = self.settings.job.join.run_id
        return worlds(self.members.participants, run_id, running.attempt, master, running.programs)

    def _message_received(
        self, node: Node | None, connection: int, message: AgentMessage, at: float
    ) -> State:
        """Handle a message if the sender may send it in this state, and it is about the current attempt."""
        state = self.state
        if node is None or not self.members.participants or isinstance(state, Gathering):
            # A correct agent sends such messages only once the job runs.
            self.members.out.append(Disconnect((connection,)))
            return state
        if node.rank is None and isinstance(message, messages.EndedExternally):
            return self._waiting_node_exits(node, message.external_cause, at)
        match message:
            case messages.RequestSuspension(by):
                return self._suspension_requested(state, node, by, at)
            case _ if node.rank is None:
                return state
            case messages.CheckResult(fault):
                return self._check_finished(state, node, fault, at)
            case Query() | Answer() | messages.RequestStacks():
                return self._query_message(state, node, message, at)
            case messages.Paused(paused):
                if not isinstance(state, Finished) and paused != node.paused:
                    self._paused(node, at, paused=paused)
            case (
                messages.EndedExternally(_, Suspended() | NotSuspended())
                | messages.Done(external_cause=Suspended() | NotSuspended())
            ):
                # Only the coordinator decides how a suspension ends.
                self._drop_member(node, message)
            case messages.EndedExternally(_, HelperFailed() as cause) if self._job_survives_loss_of(
                node
            ) and not isinstance(state, Finished):
                # The node cannot start workers any more.
                how = f"has lost its {cause.name}, which {cause.how}"
                return self._participant_lost(state, node, at, how=how)
            case messages.EndedExternally(_, cause) if isinstance(state, Restarting):
                return self._end(state, cause)
            case _ if not isinstance(state, Running) or message.attempt < state.attempt:
                # That attempt has already ended on all nodes.
                return state
            case _ if message.attempt > state.attempt or not node.may_send(message):
                self._drop_member(node, message)
            case _:
                return self._attempt_message(state, node, message, at)
        return state

    def _drop_member(self, node: Node, message: AgentMessage) -> None:
        """Disconnect a member that has sent a message that no correct agent sends."""
        what = f"it sent an unexpected message ({type(message).__name__})"
        self._print_refusal(f"{process(node.hello)} at {node.address}: {what}")
        self._disconnect([node])

    def _attempt_message(
        self, running: Running, node: Node, message: AttemptMessage, at: float
    ) -> State:
        """Handle a message about the current attempt."""
        evidence, own, began = running.evidence, self.own_hello.host, running.began
        match message:
            case messages.Idle(_, seconds, still):
                longest = at - began
                seconds, still = min(seconds, longest), min(still, longest)
                running.hangs.idle(node, messages.Idle(running.attempt, seconds, still), at)
            case messages.WorkersReady() | messages.WorkerStartsAgain() | messages.ProgramEnded():
                if running.services is not None and evidence.first is None:
                    self._service_message(running, running.services, node, message)
            case (
                messages.RankCallsSuspend()
                | messages.HoldReport()
                | messages.SaveReport()
                | messages.RankExitedEarly()
            ):
                if evidence.first is None:
                    return self._stop(
                        running, self._suspension.received(node, message, at), own, at
                    )
            case _ if node.lost is not None and node.report is None:
                # It continued after it was declared lost; the others do not wait for it.
                return running
            case messages.EndedExternally(_, cause, at_once):
                # A node that has reported may send this: its user does not want to wait for the others.
                cause = self._with_host(node, cause)
                self._note_no_restart(running, node, cause)
                evidence.add_external(cause, at)
                return self._stop(running, cause, node.hello.host, at, at_once=at_once)
            case _ if node.report is not None:
                # Its report should have been its last message in this attempt.
                self._drop_member(node, message)
            case messages.FirstFailure(_, result) if running.work_is_done:
                host = node.hello.host
                self.members.print(
                    f"{result.worker} on {host} failed after the main program had ended"
                )
            case messages.FirstFailure(_, result, failed_at):
                node.failure = _clamped(failed_at, began, at), result
                return self._stop(running, result, node.hello.host, at)
            case messages.RanksExited(_, exits):
                for each in exits:
                    running.add_exits([each.number], _clamped(each.at, began, at))
            case messages.RanksSucceeded():
                evidence.succeeded.add(node)
                running.add_exits(node.ranks, at)
                return self._end_if_all_have_reported(running, at)
            case messages.Done():
                return self._node_done(running, node, message, at)
            case _:
                assert_never(message)
        return running

    def _service_message(
        self,
        running: Running,
        services: "ServiceProgress",
        node: Node,
        message: messages.ServiceMessage,
    ) -> None:
        """Have all nodes start programs whose services are ready, or stop services after the main program."""
        match message:
            case messages.WorkersReady(attempt, numbers):
                if ready := services.became_ready(numbers):
                    order = messages.ServicesReady(attempt, ready)
                    self.members.send(self.members.participants, order)
            case messages.WorkerStartsAgain(_, number):
                services.starts_again(number)
            case messages.ProgramEnded(attempt, name):
                if services.ended(name, node.rank or 0):
                    running.hangs.end_attempt()
                    self.members.send(self.members.participants, messages.EndServices(attempt))
            case _:
                assert_never(message)

    def _node_done(self, running: Running, node: Node, done: messages.Done, at: float) -> State:
        """Handle the report of a node whose workers have all ended."""
        evidence = running.evidence
        cause = done.external_cause and self._with_host(node, done.external_cause)
        results = tuple(
            (_clamped(each.at, running.began, at), each.result) for each in done.results
        )
        node.report = NodeReport(results, cause)
        evidence.reported.append(node)
        evidence.succeeded.discard(node)
        failed: ReasonToStop | None = next(
            (result for _, result in results if not result.exit_status.succeeded), None
        )
        if running.work_is_done:
            failed = None
        if evidence.first is None and not (cause or failed):
            running.add_exits(node.ranks, at)
        if done.lease_expired and self._job_survives_loss_of(node):
            failed = self._loss(node, LEASE_EXPIRED)
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
        """Stop the workers of all nodes, unless they are stopping already.

        Args:
            running: the state.
            cause: why; None: nothing is stopped.
            host: the host that has reported the cause.
            at: now.
            at_once: kill the workers, even if they are stopping already.

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
        self.members.send([each for each in self.members.participants if each.is_reachable], order)
        return running

    def _note_no_restart(self, running: Running, node: Node, cause: ExternalCause) -> None:
        """Print on the node that got a signal that it prevents the restart of a failed attempt."""
        first, known = running.evidence.first, running.evidence.external
        if not isinstance(cause, Interrupted) or cause in known:
            return
        if not isinstance(first, WorkerResult):
            return
        why = WorkerFailed(first)
        if self._options_allow_restart(why) and not self._restarts.why_not(why):
            self.members.note(notices.no_restart(cause.number), [node])

    def _with_host(self, node: Node, cause: ExternalCause) -> ExternalCause:
        """Return a cause with the member's host where other nodes would otherwise take it for their own."""
        if isinstance(cause, HelperFailed) and len(self.members.participants) > 1:
            return replace(cause, name=as_line(f"{cause.name} on {node.hello.host}"))
        return cause

    def _end_if_all_have_reported(self, running: Running, at: float) -> State:
        evidence = running.evidence
        ended = len(evidence.reported) + len(evidence.lost) + len(evidence.ended_without_report)
        if ended < len(self.members.participants):
            next_notice = min(running.next_notice, at + SECONDS_BETWEEN_STOP_NOTICES)
            running.next_notice = next_notice if evidence.reported else NEVER
            return running
        why, no_restart = evidence.reason(), ""
        if isinstance(why, WorkerFailed) and running.exits is not None:
            earlier = running.exits.before(why.cause, evidence.failed_at(why.cause))
            why = replace(why, earlier=earlier)
        is_after_work = isinstance(why, WorkerFailed) or (
            isinstance(why, NodeLost) and why.node_rank
        )
        if running.work_is_done and is_after_work:
            # A service failed, or its node was lost, before it had stopped.
            why = Succeeded()
        if not isinstance(why, ReasonToRestart) or not self._options_allow_restart(why):
            if isinstance(why, Hung) and self.settings.job.failures.on_hang is OnHang.RESTART:
                # The report of a failed worker has the number of restarts; that of a hang does not.
                most = self.settings.job.failures.max_restarts
                no_restart = f"no restart is left (--max-restarts {most})"
            return self._end(running, why, no_restart)
        external_cause = evidence.external_cause()
        if external_cause and not self._restarts.why_not(why):
            # It came while all nodes were stopping, and prevents the restart.
            return self._end(running, external_cause)
        return self._restart(running, why, at)

    def _options_allow_restart(self, why: ReasonToRestart) -> bool:
        """Return whether the options allow another attempt after one that ended for this reason."""
        if isinstance(why, NodeLost):
            return self.settings.job.survives_node_loss and why.node_rank > 0
        acts = isinstance(why, WorkerFailed) or self.settings.job.failures.on_hang is OnHang.RESTART
        return acts and self._restarts.one_is_left

    def _response_to_hang(self, at: float) -> HangResponse:
        # A suspension has its own time limit, and a rank may print nothing while it saves.
        if self.settings.job.failures.on_hang is OnHang.REPORT or self._suspension.has_limit(at):
            return HangResponse.REPORT
        return (
            HangResponse.RESTART
            if self._options_allow_restart(Hung(0.0, (), ""))
            else HangResponse.STOP
        )

    def _suspension_requested(self, state: State, node: Node, by: str, at: float) -> State:
        again = self._suspension.add_request(by, node, at)
        if isinstance(state, Running) and state.evidence.first is None:
            if again:
                return self._stop(state, self._suspension.stop_waiting(at), self.own_hello.host, at)
            self._suspend(state, at)
        return state

    def _suspend(self, running: Running, at: float) -> None:
        services = running.services
        ended = (
            running.evidence.some_have_ended if services is None else services.some_ranks_have_ended
        )
        self._suspension.begin(at, some_have_ended=ended)

    def _paused(self, node: Node, at: float, *, paused: bool) -> None:
        """Print which node the job waits for; have members not expect heartbeats of a paused node 0."""
        node.paused = paused
        then = "continues"
        if paused:
            node.paused_at = at
            # A node may be paused again and again.
            node.pause_is_printed = at >= node.next_pause_notice
            if node.pause_is_printed:
                node.next_pause_notice = at + SECONDS_BETWEEN_PAUSE_NOTICES
            then = "is paused: the job waits until it is continued"
            if self.settings.job.survives_node_loss:
                # Its own lease expires, or all other leases if it is node 0.
                longest = self.settings.rhythm.after(FORK_SERVER_KILL_INTERVALS)
                then += f"; if that takes longer than {longest:.0f} s, all workers start again"
        elif isinstance(self.state, Running):
            # The node gets as long as the others to report.
            self.state.overdue_at += at - node.paused_at
        text = f"node {node.rank} ({node.hello.host}) {then}"
        if node is not self.members.own and self._is_large:
            # A scheduler may stop all nodes at once, so this must not loop over the members.
            self.members.note(text, None if node.pause_is_printed else ())
            return
        everyone = (*self.members.participants, *self.members.waiting)
        others = [each for each in everyone if each is not node]
        if node is self.members.own:
            self.members.send(others, messages.Paused(paused))
            # The next heartbeats of the others renew their leases before the next attempt.
            self._settle_later(at)
        if node.pause_is_printed:
            self._notify(others, text)

    def _notify(self, nodes: Iterable[Node], text: str) -> None:
        if self._is_large:
            nodes = [each for each in nodes if each is self.members.own]
        self.members.note(text, nodes)

    @property
    def _is_large(self) -> bool:
        return self.size > MAX_NODES_NOTIFIED

    def _disconnect(self, nodes: Iterable[Node]) -> None:
        connections = tuple(each.connection for each in nodes)
        if connections:
            self.members.out.append(Disconnect(connections))

    # Queries, and stacks that node 0 collects unasked.

    def _query_message(
        self, state: State, node: Node, message: Query | Answer | messages.RequestStacks, at: float
    ) -> State:
        """Handle a query, or a node's answer to one."""
        match message:
            case Query():
                self._queries.ask_for_member(node, message, at)
            case Answer():
                if not self._queries.add_answer(node, message):
                    self._drop_member(node, message)
                return self._evaluate_answers(state, at)
            case messages.RequestStacks() if self._lines.is_spent(node.address, at):
                pass
            case messages.RequestStacks() if isinstance(state, Running):
                # On node 0 the agent itself prints this.
                on_host = f"SIGQUIT on {node.hello.host}: {STACKS_FOLLOW}; the job keeps running"
                if node is not self.members.own and not state.hangs.prints_stacks:
                    self.members.note(on_host)
                state.hangs.collect(at)
        return state

    def _evaluate_answers(self, state: State, at: float) -> State:
        """Evaluate the answers to the coordinator's own query once all have arrived."""
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
            case Restarting() as restarting if at >= restarting.recheck_at:
                restarting.recheck_at = NEVER
                return self._recheck(restarting, at)
            case Restarting() as restarting if at >= restarting.rejoin_ends:
                return self._end_without_restart(restarting, self._assignment.why_too_few())
            case _:
                return self.state

    def _time_passed_while_gathering(self, gathering: Gathering, at: float) -> State:
        if self.own_hello.fault:
            return self._refuse_failed_check(gathering, self.members.own, at)
        if at >= gathering.starts_at:
            return self._begin_if_complete(gathering, at)
        if at >= gathering.times_out_at:
            return self._refuse_all(gathering.timeout_error(self._refused))
        if at >= gathering.next_notice:
            gathering.next_notice = at + joining.SECONDS_BETWEEN_NOTICES
            self._notify(self.members.by_connection.values(), gathering.progress(at))
        return gathering

    def _time_passed_while_running(self, running: Running, at: float) -> State:
        evidence, own = running.evidence, self.own_hello.host
        if running.hangs.time_passed(at):
            return running
        if evidence.first is None and (end := self._suspension.time_passed(at)):
            return self._stop(running, end, own, at)
        services = running.services
        if services is not None and evidence.first is None and at >= services.due:
            self._notify(self.members.participants, services.waits(at))
        if at >= running.overdue_at:
            return self._lose_overdue(running, at)
        if running.exits is not None and at >= self._exits_due(running):
            for notice in running.exits.notices(at):
                self.members.note(notice)
        if at >= running.next_notice:
            running.next_notice = at + SECONDS_BETWEEN_STOP_NOTICES
            gone = {*evidence.reported, *evidence.lost, *evidence.ended_without_report}
            busy = listed(each.hello.host for each in self.members.participants if each not in gone)
            text = f"all workers of this node have exited; still running: {busy}"
            # Node 0 has already printed which ranks have exited.
            exits = running.exits
            is_known = exits is not None and exits.are_reported and evidence.first is None
            without = self.members.own if is_known else None
            self._notify([each for each in evidence.reported if each is not without], text)
        return running

    def _exits_due(self, running: Running) -> float:
        """Return when to name ranks that have exited with 0; NEVER if all ranks are to end."""
        ends = running.evidence.first or running.work_is_done or self._suspension.is_active
        return NEVER if ends or running.exits is None else running.exits.due

    # Nodes are lost.

    def _member_disconnected(self, node: Node | None, gone: events.MemberDisconnected) -> State:
        """Handle the closed connection of a member."""
        state = self.state
        match state:
            case _ if node is None:
                return state
            case Gathering():
                self._remove_member(state, node, "has disconnected", gone.at)
                return state
            case Finished():
                # Users may still query the other nodes, whose left-over processes run.
                node.is_present = False
                self._queries.node_lost(node)
                return state
            case _ if node.rank is None:
                return self._waiting_node_lost(
                    state, node, "has left", gone.at, has_ended=gone.has_ended
                )
            case _:
                if gone.has_ended:
                    self.grants.has_ended(node.connection)
                how = self._silence if gone.is_unreachable else None
                return self._participant_lost(
                    state, node, gone.at, how=how, is_silent=gone.is_unreachable
                )

    @property
    def _silence(self) -> str:
        return silence(self.settings.member_silence)

    def _job_survives_loss_of(self, node: Node) -> bool:
        """Return whether the job may continue without this node."""
        return self.settings.job.survives_node_loss and node is not self.members.own

    def _member_silent(self, node: Node | None, connection: int, at: float) -> State:
        """Handle a member that has been silent for too long."""
        state = self.state
        match state:
            case Gathering() if node is not None and node is not self.members.own:
                self._remove_member(state, node, self._silence, at)
                self._disconnect([node])
            case Running() | Restarting() if node is not None and node.rank is None:
                state = self._waiting_node_lost(state, node, self._silence, at, has_ended=False)
                self._exclude(node, self._silence)
            case Running() | Restarting() if node is not None:
                return self._declare_lost(state, node, self._silence, at, is_silent=True)
            case _:
                self.members.out.append(Disconnect((connection,)))
        return state

    def _declare_lost(
        self,
        state: Running | Restarting,
        node: Node,
        how: str,
        at: float,
        *,
        is_silent: bool = False,
    ) -> State:
        """Declare a node lost that is still connected."""
        if self._job_survives_loss_of(node):
            self._exclude(node, how)
        else:
            # It may be frozen: if it continues it gets everything that is sent to the others.
            node.may_continue = node.may_continue or node.lost is None
        return self._participant_lost(state, node, at, how=how, is_silent=is_silent)

    def _exclude(self, node: Node, why: str) -> None:
        """Tell a node, in case it continues, that the job continues without it."""
        self.members.send([node], messages.GivenUp(as_line(why)))
        self._disconnect([node])

    def _participant_lost(
        self,
        state: Running | Restarting,
        node: Node,
        at: float,
        *,
        how: str | None = None,
        is_silent: bool = False,
    ) -> State:
        """Handle the loss of a participant; only the first reason counts.

        ``how`` None: its connection has ended.
        """
        if node.lost is None:
            node.is_present, node.lost = False, self._loss(node, how)
            self.members.lost.append(node)
            if isinstance(state, Running):
                state.hangs.lost(node)
            self._queries.node_lost(node)
            if is_silent:
                self._settle_later(at)
            if isinstance(state, Running) and node.report is None:
                return self._lost_while_running(state, node, node.lost, at, is_silent=is_silent)
        return self._recheck(state, at) if isinstance(state, Restarting) else state

    def _loss(self, node: Node, how: str | None) -> NodeLost:
        is_task = self.settings.job.tasks is not None
        lost = NodeLost(node.rank or 0, node.hello.host, is_task=is_task)
        return lost if how is None else replace(lost, how=as_line(how))

    def _lost_while_running(
        self, running: Running, node: Node, lost: NodeLost, at: float, *, is_silent: bool
    ) -> State:
        if self.settings.job.survives_node_loss:
            self.grants.lost(node.connection)
        evidence = running.evidence
        if not is_silent and at - self._stopped.at <= self.settings.rhythm.interval:
            # Node 0 itself was stopped, so the member has declared it lost.
            how = f"was stopped for {self._stopped.seconds:.0f} s"
            evidence.node_zero_stopped = evidence.node_zero_stopped or self._loss(
                self.members.own, how
            )
        evidence.lost.append(node)
        last_sent = at - (self.settings.member_silence if is_silent else 0.0)
        evidence.lost_at = min(evidence.lost_at, last_sent)
        self._stop(running, evidence.node_zero_stopped or lost, node.hello.host, at)
        return self._end_if_all_have_reported(running, at)

    def _lose_overdue(self, running: Running, at: float) -> State:
        """Declare nodes lost that were told to stop long ago and have not reported.

        Paused nodes are kept: they may report when they continue.
        """
        gone, state = {*running.evidence.reported, *running.evidence.lost}, self.state
        late = [
            it for it in self.members.participants if it not in gone and it is not self.members.own
        ]
        has_paused = any(it.paused for it in late)
        running.overdue_at = at + SECONDS_TO_REPORT if has_paused else NEVER
        for each in late:
            if not each.paused and isinstance(state, Running):
                state = self._declare_lost(state, each, "has not ended its workers", at)
        return state

    def _waiting_node_lost(
        self, state: State, node: Node, why: str, at: float, *, has_ended: bool
    ) -> State:
        """Remove a waiting node; ``has_ended``: its agent is known to have ended."""
        self.members.remove(node)
        self.members.waiting.remove(node)
        node.is_present = False
        if not has_ended:
            self._settle_later(at)
        self.members.print(f"{process(node.hello)}, which was waiting to join, {why}")
        return self._recheck(state, at) if isinstance(state, Restarting) else state

    def _waiting_node_exits(self, node: Node, cause: ExternalCause, at: float) -> State:
        """Let a waiting node exit because of its user; the job continues."""
        self.members.send([node], messages.Verdict(cause, ""))
        self._disconnect([node])
        return self._waiting_node_lost(self.state, node, "has left", at, has_ended=True)

    def _settle_later(self, at: float) -> None:
        self._settles_at = at + HEARTBEATS_TO_SETTLE * self.settings.rhythm.interval

    # Between two attempts.

    def _restart(self, running: Running, why: ReasonToRestart, at: float) -> State:
        """Prepare the next attempt, or end the job."""
        restarts, rejoin_timeout = self._restarts, self._assignment.rejoin_timeout
        no_restart = self._assignment.why_end() or restarts.why_not(why)
        restarts.ended(why)
        if no_restart:
            return self._end_without_restart(running, no_restart)
        delay = restarts.begin()
        state = Restarting(running.attempt, NEVER, not_before=at + delay)
        state.rejoin_ends = at + delay + rejoin_timeout if rejoin_timeout else NEVER
        self._schedule_recheck(state, at)
        if isinstance(why, WorkerFailed) and self.settings.job.join.check:
            self._start_check(state, why.cause)
        if delay:
            early = f"within 10 s of their start {restarts.early_failures} times in a row"
            self.members.note(f"restarting in {delay:g} s, since workers have failed {early}")
        return self._start_if_ready(state)

    def _start_check(self, state: Restarting, cause: WorkerResult) -> None:
        """Have the node of the failed worker check itself."""
        for each in self.members.present:
            if each.owns((cause.rank,)):
                state.checking, state.rejoin_ends = each, NEVER
                self.members.send([each], messages.CheckNode())

    def _check_finished(self, state: State, node: Node, fault: str, at: float) -> State:
        """Continue once a node has checked itself, without the node if the check failed."""
        if not isinstance(state, Restarting) or node is not state.checking:
            return state
        self._finish_check(state, at)
        if not fault:
            return self._recheck(state, at)
        node.hello = replace(node.hello, fault=fault)
        self._restarts.node_failed_check()
        node.lost = self._loss(node, f"fails its check: {fault}")
        self.members.lost.append(node)
        if not self._job_survives_loss_of(node):
            return self._end_without_restart(state, "")
        verdict = messages.Verdict(self._restarts.ended_by, notices.lost(node.lost))
        self.members.send([node], verdict)
        self._disconnect([node])
        # Its workers have ended, so no lease has to expire.
        node.is_present = False
        self._queries.node_lost(node)
        return self._recheck(state, at)

    def _finish_check(self, state: Restarting, at: float) -> None:
        state.checking = None
        if self._assignment.rejoin_timeout:
            state.rejoin_ends = max(at, state.not_before) + self._assignment.rejoin_timeout

    def _schedule_recheck(self, state: Restarting, at: float) -> None:
        """Delay the next attempt while members may be lost unnoticed, or a lost node's worker may run."""
        settled = max(state.not_before, self._settles_at, self.grants.begins_after)
        state.recheck_at = NEVER
        if at < settled:
            state.recheck_at, state.rejoin_ends = settled, max(state.rejoin_ends, settled)

    def _recheck(self, state: Restarting, at: float) -> State:
        """Begin the next attempt, or end the job, after the loss of a member or the end of the delay."""
        if state.checking is not None and not state.checking.is_present:
            self._finish_check(state, at)
        if no_restart := self._assignment.why_end():
            return self._end_without_restart(state, no_restart)
        self._schedule_recheck(state, at)
        return self._start_if_ready(state)

    def _start_if_ready(self, state: Restarting) -> State:
        """Begin the next attempt if enough nodes are present, and nothing delays it."""
        may_begin = state.recheck_at == NEVER and state.checking is None
        if may_begin and self._assignment.next_participants():
            self.members.out.append(PreparePort())
        return state

    def _begin_next_attempt(self, state: Restarting, port: int, at: float) -> State:
        """Begin the next attempt on all nodes; ``port`` is the workers' master port."""
        members, why = self.members, self._restarts.ended_by
        participants = self._assignment.next_participants()
        if participants is None:
            raise AssertionError("enough nodes are present")
        chosen, attempt = set(participants), state.attempt + 1
        progress = self._assignment.count_losses(participants, self._restarts.count)
        self._forget_lost()
        members.waiting = [each for each in members.waiting if each not in chosen]
        knew = {each for each in participants if each.had_rank}
        running = self._start_attempt(participants, attempt, at)
        host = self.own_hello.host
        for each, world in zip(participants, self._worlds(running, port), strict=True):
            order = messages.NextAttempt(world, why, progress)
            members.send([each], order if each in knew else messages.WorldFormed(world, host))
        # An earlier request applies to this attempt as well.
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

    def _end_without_restart(self, state: Running | Restarting, no_restart: str) -> Finished:
        """End the job after an attempt that another one could follow; ``no_restart``: why none does."""
        failed_checks = (each.lost for each in self.members.lost if each.lost and each.hello.fault)
        reasons = (*map(notices.lost, failed_checks), no_restart)
        return self._end(state, self._restarts.ended_by, as_line("; ".join(filter(None, reasons))))

    def _end(self, state: Running | Restarting, why: Reason, no_restart: str = "") -> Finished:
        """Send the verdict to all members, including waiting nodes."""
        members = self.members
        if isinstance(why, HelperFailed) and self._restarts.one_is_left:
            no_restart = as_line(f"no other attempt can start without its {why.name}")
        reached = [each for each in members.participants if each.is_reachable]
        members.send([*reached, *members.waiting], messages.Verdict(why, no_restart))
        # The other members disconnect once they have the verdict.
        self._disconnect([each for each in members.lost if each.may_continue])
        return Finished(state.attempt)


def _clamped(at: float | None, began: float, now: float) -> float:
    """Return when a worker failed or ended, limited to the time since the attempt began.

    ``at`` None: its node does not know its clock offset yet.
    """
    return now if at is None else min(max(at, began), now)
