"""How far the clocks of the nodes are from node 0's."""

import time

from clusterrun.node_checks.meeting import SECONDS_FOR_RANK_0, Meeting

ROUNDS = 5
SECONDS_TO_ANSWER = 5.0


def measure_clocks(meeting: Meeting) -> list[float]:
    """Return by how many seconds each node's clock is ahead of node 0's; [] on other nodes.

    Of several questions, the one that is answered fastest counts (RFC 5905, the clock filter).

    Raises:
        Silent: a node does not answer.

    """
    if meeting.rank:
        for _ in range(ROUNDS):
            meeting.peers[0].receive(str, SECONDS_FOR_RANK_0)
            meeting.peers[0].send(time.time())
        return []
    offsets = [0.0]
    for peer in meeting.peers:
        tries = []
        for _ in range(ROUNDS):
            began, sent_at = time.monotonic(), time.time()
            peer.send("time?")
            theirs = peer.receive(float, SECONDS_TO_ANSWER)
            took = time.monotonic() - began
            tries.append((took, theirs - (sent_at + took / 2)))
        offsets.append(min(tries)[1])
    return offsets
