"""How long node 0's own workers may run without a sign of more than half of the agents.

If node 0 is frozen or cut off, the others go on with another coordinator. Its fork server kills its
workers before that, as the fork servers of other nodes do.
"""

from collections.abc import Callable

from clusterrun.coordination.heartbeat import SilenceWatch
from clusterrun.coordination.terms import Terms

LOOKS_IN_AN_INTERVAL = 4


class OwnLease:
    """Belongs to a coordinator."""

    def __init__(self, terms: Terms, watch: SilenceWatch, renew: Callable[[float], object]) -> None:
        """Take the watch of all other agents, and what renews the lease of this node's workers."""
        self._rhythm = terms.rhythm
        self._is_needed = terms.reforming.fails_over
        self._watch = watch
        self._renew = renew
        self._look_again = 0.0

    def message_received(self, now: float) -> None:
        """Renew the lease, since an agent has sent something, if most of the others have, too.

        An agent takes node 0 for lost ``timeout`` after the last answer. No message that is answered
        comes later than the one that renews the lease.
        """
        if not self._is_needed or now < self._look_again:
            return
        self._look_again = now + self._rhythm.interval / LOOKS_IN_AN_INTERVAL
        agents = 1 + len(self._watch)
        if 2 * (1 + self._watch.count_active(now)) > agents:
            self._renew(self._rhythm.timeout)

    def member_forgotten(self) -> None:
        """Let the workers run without a lease once no agent is left that could go on."""
        if self._is_needed and not self._watch:
            self._renew(0.0)
