"""Leases: how long workers may run without a sign of the rest of the job. Pure.

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
its lease is over; and when more than half of the agents are left (``places.may_go_on``). A successor,
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

from collections.abc import Collection

from clusterrun.coordination.members import OWN
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.messages import HeartbeatAnswer


class CoordinatorLease:
    """What the members of one coordinator have confirmed, and until when their workers may run."""

    def __init__(self, timeout: float) -> None:
        """Begin without members; ``timeout``: of the rhythm of heartbeats, in seconds."""
        self._timeout = timeout
        self._confirmed: dict[int, float] = {}
        self._given: dict[int, float] = {}

    def confirmed(self, member: int, at: float) -> None:
        """Take note that a member has received what was sent to it at a time of this clock.

        A member that joins confirms what it sends first: it has not turned away before.
        """
        self._confirmed[member] = max(at, self._confirmed.get(member, 0.0))

    def ends(self, rosters: Collection[Collection[int]], ended: Collection[int]) -> float:
        """Return when the coordinator's lease ends.

        Args:
            rosters: sets of agents; more than half of each is needed.
            ended: those that are known to have ended, or are paused.

        Returns:
            By the coordinator's clock; NEVER if no part of the job can go on without it.

        """
        newest = [self._of_most(roster, ended) for roster in rosters if roster]
        return min(newest, default=NEVER) + self._timeout

    def _of_most(self, roster: Collection[int], ended: Collection[int]) -> float:
        """Return when the newest answer was sent that more than half have confirmed, itself included."""
        confirmed = sorted(
            NEVER if each == OWN or each in ended else self._confirmed.get(each, 0.0)
            for each in roster
        )
        return confirmed[-(len(roster) // 2 + 1)]

    def give(self, member: int, now: float, ends: float) -> float:
        """Return the seconds that an answer lets a member's workers run, and keep them in mind.

        ``ends``: the end of the coordinator's lease.
        """
        left = max(0.0, min(self._timeout, ends - now))
        self._given[member] = max(now + left, self.given_until(member))
        return left

    def given_until(self, member: int) -> float:
        """Return until when a member's workers may run if its agent says nothing more; 0.0: no lease."""
        return self._given.get(member, 0.0)

    def forget(self, member: int) -> None:
        self._confirmed.pop(member, None)
        self._given.pop(member, None)


class MemberLease:
    """Until when a member's workers may run, as one coordinator has answered."""

    def __init__(self) -> None:
        """Begin without a lease: the coordinator has not answered yet."""
        self.ends = 0.0
        """By the member's clock."""
        self.seen = 0.0
        """When the newest answer was sent, by the coordinator's clock: the next heartbeat says it."""
        self.was_paused = False
        """The coordinator has not answered since this agent was paused."""

    def answered(self, answer: HeartbeatAnswer, now: float) -> None:
        """Take an answer, which may have waited to be read: only when its question was sent counts."""
        self.seen = answer.at
        self.was_paused = False
        self.ends = max(self.ends, min(answer.to, now) + answer.lease)
