"""Until when workers may run in a job that survives node loss, so that two attempts never run at once.

T is ``--heartbeat-timeout``, I the interval of heartbeats. A lease is timed by CLOCK_BOOTTIME, which
continues while the host sleeps. Times of two hosts are never compared.

1. Node 0 runs the coordinator for the whole life of the job. Its own workers have no lease: it begins no
   attempt before they have ended.
2. A member sends a heartbeat every I, with the time of sending; its ``Hello`` is the first. Node 0 answers
   each at once, with that time. The lease runs from the time when the newest answered heartbeat was
   *sent*, however late the answer is read.
3. A member whose agent runs but receives nothing from node 0 for T + 2 I kills its workers and exits. At
   sent + T + 2.25 I its fork server kills them, whatever the agent does. If the fork server is stopped at
   that time, the agent kills it, and with it the workers, within another I / 2. At T + 3 I after its
   newest answer node 0 may begin the next attempt without that node. The newest answered heartbeat may
   be I old when a process is stopped, so a stop shorter than T has no effect.
4. Node 0 declares a member lost that is silent for T + 3 I, or whose connection is closed, and from then
   on answers it no more. The next attempt begins when all other nodes have reported the end of their
   workers, and for each lost node either its connection was closed in order or its time in 3 has passed.
5. The orderly end of a connection (FIN) means that no worker is left: the fork server holds the connection
   too, and closes it last. After a reset or silence node 0 waits until the lease has expired.
6. The fork server starts no worker while the lease is expired.

Not covered: the agent and the fork server of one node are both stopped for longer than T + 3 I while the
workers of that node run. See docs/several_nodes.md, "Leases".
"""

from clusterrun.policy.settings import MEMBER_SILENCE_INTERVALS, HeartbeatRhythm

FORK_SERVER_STOP_INTERVALS = 0.25
"""Intervals for which the fork server may be stopped past the lease before the agent kills it."""

FORK_SERVER_KILL_INTERVALS = 2.25
"""Intervals after T at which a member's fork server kills the workers."""


class MemberLease:
    """A member's own lease, by its host's clock."""

    def __init__(self, rhythm: HeartbeatRhythm) -> None:
        """Begin without a lease."""
        self._rhythm = rhythm
        self._sent = 0.0
        self.ends = 0.0
        """When the fork server kills the workers."""

    def answered(self, sent: float) -> bool:
        """Handle the answer to the heartbeat sent at ``sent``; return whether it extends the lease."""
        if sent <= self._sent:
            return False
        self._sent = sent
        self.ends = sent + self._rhythm.after(FORK_SERVER_KILL_INTERVALS)
        return True


class GrantedLeases:
    """Until when the workers of each member may run, by node 0's clock."""

    def __init__(self, rhythm: HeartbeatRhythm) -> None:
        self._seconds = rhythm.after(MEMBER_SILENCE_INTERVALS)
        self._until: dict[int, float] = {}
        self._lost: dict[int, float] = {}

    @property
    def begins_after(self) -> float:
        """When the leases of all lost members have expired."""
        return max(self._lost.values(), default=0.0)

    def answer(self, member: int, now: float) -> None:
        """Extend a member's lease; ``now`` was read after its heartbeat was received."""
        self._until[member] = now + self._seconds

    def lost(self, member: int) -> None:
        """Keep the lease of a lost member, which is not extended any more."""
        self._lost[member] = self._until.pop(member, 0.0)

    def has_ended(self, member: int) -> None:
        """Drop the lease of a member whose connection was closed in order: no worker is left."""
        self._until.pop(member, None)
        self._lost.pop(member, None)

    def begin(self) -> None:
        """Forget the lost members: the next attempt begins."""
        self._lost.clear()
