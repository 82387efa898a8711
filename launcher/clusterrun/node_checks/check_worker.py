"""The worker that ``clusterrun doctor`` starts on each node: checks it, and the nodes together.

It prints an ``Answer`` in a line of JSON, which the command that has started the job reads; that of
node 0 has the table.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from clusterrun.machine.health.finding import Level
from clusterrun.node_checks.findings import Answer, JobFinding, JobHealth, Node, labels_of
from clusterrun.node_checks.meeting import Meeting, Silent, meet
from clusterrun.node_checks.node_facts import describe_this_node
from clusterrun.node_checks.reach import Door
from clusterrun.node_checks.steps import Steps

SECONDS_TO_IMPORT = 60.0
"""torch may come from a network file system."""

STUCK = 1
"""The exit code of node 0's worker if another does not answer: the launcher then ends that one."""


def check_all_nodes(log_dir: str, environ: Mapping[str, str]) -> tuple[Answer, int]:
    """Take part in the checks; return what to print, and the exit code."""
    findings: list[JobFinding] = []
    labels: tuple[str, ...] = ()
    try:
        meeting = meet(environ)
        door = Door()
        own = describe_this_node(meeting.address, door, environ)
        nodes = meeting.share(own, Node, SECONDS_TO_IMPORT)
        if own.local_rank:
            # The scheduler has started a task for each GPU; the first of a node checks it.
            return Answer(has_failed=False, health=None), 0
        meeting, nodes = _one_per_node(meeting, nodes)
        labels = labels_of(nodes)
        findings.extend(Steps(meeting, nodes, log_dir, environ).all())
        health = JobHealth(labels, tuple(findings))
        has_failed = meeting.announce(health.has_failed, bool)
    except Silent as silent:
        return _unfinished(silent, int(environ["RANK"]), labels, findings), STUCK
    return Answer(has_failed, None if meeting.rank else health), 0


def _one_per_node(meeting: Meeting, nodes: Sequence[Node]) -> tuple[Meeting, list[Node]]:
    """Return the meeting of the first worker of each node, numbered by node rank, and these nodes."""
    first = [rank for rank, node in enumerate(nodes) if node.local_rank == 0]
    if meeting.rank:
        return Meeting(first.index(meeting.rank), meeting.peers), [nodes[rank] for rank in first]
    for peer in meeting.peers:
        if peer.rank not in first:
            peer.file.close()
            peer.connection.close()
    peers = [
        peer._replace(rank=first.index(peer.rank)) for peer in meeting.peers if peer.rank in first
    ]
    return Meeting(0, peers), [nodes[rank] for rank in first]


def _unfinished(
    silent: Silent, rank: int, labels: Sequence[str], findings: Sequence[JobFinding]
) -> Answer:
    """Return what is known when a node does not answer; node 0 has the table."""
    if rank:
        return Answer(has_failed=True, health=None)
    name = labels[silent.rank] if labels else f"rank {silent.rank}"
    advice = "type clusterrun doctor --this-machine there: a file system or a driver may hang"
    last = JobFinding(Level.FAILURE, "answers", f"{name} {silent.how}", advice, (name,))
    return Answer(has_failed=True, health=JobHealth(tuple(labels), (*findings, last)))


def main() -> None:
    """Check, and print the answer; the only argument is the folder for logs, "" for none."""
    answer, code = check_all_nodes(sys.argv[1], dict(os.environ))
    line = msgspec.json.encode(answer)
    with suppress(BrokenPipeError):
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.flush()
    # No thread that waits for a caller or a name server may delay the end.
    os._exit(code)


if __name__ == "__main__":
    main()
