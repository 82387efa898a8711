"""Which part of a job may go on: more than half of its agents, and only once no lease of another runs.

No two attempts of a job ever train at once, whatever fails. The rule:

*Workers run on a lease.* A coordinator's lease ends ``--heartbeat-timeout`` after it sent the newest
answer to a heartbeat that more than half of the attempt's agents have confirmed: each heartbeat says
which answer was the last that came. While some agents may not know the attempt yet, more than half
of those of the attempt before are needed, too. A member's lease ends that long after it *sent* the
newest heartbeat that was answered, but never after the coordinator's: each answer says what is left.
An agent starts workers only while its lease runs. The fork server, which no frozen agent can stop
from it, kills the workers when the lease is over.

*The next attempt begins* when every agent of the last one has reported that no worker is left, or is
known to have ended (its host's kernel has closed the connection; one that was reset may live), or
its lease is over; and when more than half of the agents are left (``Quorum.may_go_on``). A successor,
who knows no leases, waits until ``--heartbeat-timeout`` after the last thing that any of its agents
*received* from the lost coordinator, unless all that are missing are known to have ended.

*Why it holds:* two majorities share an agent. The old part's lease ends at most the timeout after an
answer which that agent received; it turned away no earlier, and its new coordinator waits for as long
from then on.

That an agent claims its place from one successor at a time, and from another only when the first has
ended, is needed for none of this: no history was found that breaks without it, since what the agent
has received of the first counts for the leases that the second waits out. It saves the part that
cannot gather a majority from taking agents of the one that can.

An agent whose end is known confirms for ever, since it follows no other any more; so does one that its
user has paused, since it follows a successor only once the coordinator has answered it again.
"""

from msgspec import Struct, field

from clusterrun.loop import NEVER
from clusterrun.policy.members import OWN, Members, Node


class Quorum(Struct):
    """The agents at the beginning of an attempt, those that wait included."""

    agents: list[Node] = field(default_factory=list)

    def may_go_on(self) -> bool:
        """Return whether no other part of the job can go on, too."""
        return 2 * self.here > len(self.agents) or self.all_missing_have_ended

    @property
    def here(self) -> int:
        return sum(each.here for each in self.agents)

    @property
    def all_missing_have_ended(self) -> bool:
        return all(each.has_ended for each in self.agents if not each.here)

    def put(self, absent: Node, node: Node) -> None:
        """Put an agent that has come in the place of one that was only counted.

        If another one has counted as that already, this is one more: the majority is no easier.
        """
        if absent in self.agents:
            self.agents[self.agents.index(absent)] = node
        else:
            self.agents.append(node)


class Majority:
    """Who has to be here, what they have confirmed, and until when workers may run."""

    def __init__(self, members: Members, timeout: float) -> None:
        """Begin before the first attempt; ``timeout``: of the rhythm of heartbeats, in seconds."""
        self.of_attempt = Quorum()
        self.of_attempt_before = Quorum()
        """Those that are not known to have ended, if the coordinator has successors: some agents may
        not know yet that another attempt has begun."""
        self.unaware: set[Node] = set()
        """Those that have not confirmed yet that they know who may succeed this coordinator."""
        self.lost_leases_end = 0.0
        """When no worker of a lost node is left: those whose end is not known may run until then."""
        self._members = members
        self._timeout = timeout
        self._confirmed: dict[int, float] = {}
        self._given: dict[int, float] = {}

    # Attempts.

    def begin_attempt(self) -> None:
        self.of_attempt = Quorum(list(self._members.by_connection.values()))
        self.lost_leases_end = 0.0

    def keep_last_attempt(self) -> None:
        """Count its agents for as long as some may not know that another one has begun."""
        known = [each for each in self.of_attempt.agents if not each.has_ended]
        self.of_attempt_before = Quorum(known)

    @property
    def all_present_are_aware(self) -> bool:
        """Whether none of them can follow a successor with those of an attempt before the last."""
        return not any(each.here for each in self.unaware)

    @property
    def all_missing_have_ended(self) -> bool:
        quorums = (self.of_attempt, self.of_attempt_before)
        return all(each.all_missing_have_ended for each in quorums)

    def lost(self, node: Node) -> None:
        """Begin no attempt while the workers of a lost node may run, whose agent may live."""
        if node.connection is not None and not node.has_ended:
            given = self._given.get(node.connection, 0.0)
            self.lost_leases_end = max(self.lost_leases_end, given)

    def heard_of_the_lost(self, at: float) -> None:
        """Begin no attempt while a lease may run that rests on what an agent received at ``at``."""
        self.lost_leases_end = max(self.lost_leases_end, at + self._timeout)

    def why_not(self) -> str:
        """Return why this part of the job may not go on; "" if it may."""
        before = [each for each in self.of_attempt_before.agents if not each.has_ended]
        for quorum in (self.of_attempt, Quorum(before)):
            if not quorum.may_go_on():
                return (
                    f"{quorum.here} of {len(quorum.agents)} nodes are left, not more than half, and"
                    " the others may still run: two parts of a job must not go on at once"
                )
        return ""

    # Leases.

    def confirmed(self, connection: int, at: float) -> None:
        """Take note that a member has received what was sent to it at a time of this clock.

        A member that joins confirms what it sends first: it has not turned away before.
        """
        self._confirmed[connection] = max(at, self._confirmed.get(connection, 0.0))

    @property
    def lease_ends(self) -> float:
        """When the coordinator's lease ends, by its clock: more than half of each quorum is needed.

        NEVER if no part of the job can go on without it.
        """
        quorums = [self.of_attempt, self.of_attempt_before] if self.unaware else [self.of_attempt]
        newest = [self._of_most(each.agents) for each in quorums if each.agents]
        return min(newest, default=NEVER) + self._timeout

    def _of_most(self, agents: list[Node]) -> float:
        """Return when the newest answer was sent that more than half have confirmed, itself included."""
        confirmed = sorted(map(self._newest, agents))
        return confirmed[-(len(agents) // 2 + 1)]

    def _newest(self, node: Node) -> float:
        if node.connection == OWN or node.has_ended or node.paused:
            return NEVER
        return 0.0 if node.connection is None else self._confirmed.get(node.connection, 0.0)

    def give(self, connection: int, now: float, ends: float) -> float:
        """Return the seconds that an answer lets a member's workers run, and keep them in mind.

        ``ends``: the end of the coordinator's lease.
        """
        left = max(0.0, min(self._timeout, ends - now))
        self._given[connection] = max(now + left, self._given.get(connection, 0.0))
        return left

    def forget(self, node: Node) -> None:
        """Count nothing of a lost member that the next attempt begins without."""
        node.paused = False
        if node.connection is not None:
            self._confirmed.pop(node.connection, None)
            self._given.pop(node.connection, None)
