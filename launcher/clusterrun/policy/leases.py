"""Until when workers may run in a job that outlives nodes, so that no two attempts ever run at once.

T is ``--heartbeat-timeout``, I the interval of heartbeats. The clock of a lease goes on while its host
sleeps (CLOCK_BOOTTIME), and times of two hosts are never compared.

1. Node 0 is the coordinator for the job's life. Its own workers have no lease: it begins no attempt before
   they have ended.
2. A member sends a heartbeat each I, with the time of sending; its ``Hello`` is the first. Node 0 answers
   each at once, with that time. The workers may run for some time after the newest heartbeat that was
   answered was *sent*, however late the answer is read.
3. A member whose agent runs and hears nothing of node 0 for T + 2 I kills its workers, and ends. At
   sent + T + 2.25 I its fork server kills them, whatever the agent does; if the fork server is stopped then,
   the agent ends it, and with it the workers, within another half of I. At T + 3 I after its newest answer
   node 0 may begin the next attempt without that node. The newest answered heartbeat may be I old when a
   process is stopped, so that none that is stopped for less than T costs anything.
4. Node 0 gives up a member that is silent for T + 3 I, or whose connection has ended: from then on it
   answers nothing. The next attempt begins when all others have reported their end, and the connection of
   each lost one has ended orderly, or its time in 3 has passed.
5. The orderly end of a connection (FIN) says that no worker is left: the fork server holds the connection,
   too, and closes it last. After a reset or silence the lease is waited out.
6. The fork server starts no worker while the lease is over.

Not covered: the agent and the fork server of one node both stopped for longer than T + 3 I, while the
workers of that node run. See docs/several_nodes.md, "Leases".
"""

from clusterrun.policy.settings import MEMBER_SILENCE_INTERVALS, HeartbeatRhythm

FORK_SERVER_STOP_INTERVALS = 0.25
"""Of an interval: how long the agent lets its fork server be stopped when that is to kill the workers."""

FORK_SERVER_KILL_INTERVALS = 2.25
"""Intervals after T at which a fork server kills the workers of a member."""


class MemberLease:
    """A member's side, by the clock of its host."""

    def __init__(self, rhythm: HeartbeatRhythm) -> None:
        """Begin without a lease: node 0 has answered nothing."""
        self._rhythm = rhythm
        self._sent = 0.0
        self.ends = 0.0
        """When the fork server kills the workers."""

    def answered(self, sent: float) -> bool:
        """Take the answer to the heartbeat that was sent then; return whether the lease ends later now."""
        if sent <= self._sent:
            return False
        self._sent = sent
        self.ends = sent + self._rhythm.after(FORK_SERVER_KILL_INTERVALS)
        return True


class GrantedLeases:
    """Node 0's side: until when the workers of each member may run, by node 0's clock."""

    def __init__(self, rhythm: HeartbeatRhythm) -> None:
        self._seconds = rhythm.after(MEMBER_SILENCE_INTERVALS)
        self._until: dict[int, float] = {}
        self._lost: dict[int, float] = {}

    @property
    def begins_after(self) -> float:
        """When the next attempt may begin: no worker of a lost member runs any more."""
        return max(self._lost.values(), default=0.0)

    def answer(self, member: int, now: float) -> None:
        """Take note of an answer to a heartbeat; ``now`` was read after that had come."""
        self._until[member] = now + self._seconds

    def lost(self, member: int) -> None:
        """Wait until the workers of a lost member have ended; it gets no answer any more."""
        self._lost[member] = self._until.pop(member, 0.0)

    def has_ended(self, member: int) -> None:
        """Take note that no worker of a member is left: its kernel has reported the orderly end."""
        self._until.pop(member, None)
        self._lost.pop(member, None)

    def begin(self) -> None:
        """Begin an attempt without those that were lost."""
        self._lost.clear()
