"""Which part of a job goes on, for each way in which its nodes can lose sight of each other."""

from collections.abc import Iterator, Sequence

from tests.coordination.door import (
    JobPhase,
)
from tests.coordination.succession.lost_coordinator import (
    SECONDS,
    claiming,
    comes,
    gathers,
    known_to,
    running_job,
)
from tests.rendezvous.nodes import fate

Parts = tuple[tuple[int, ...], ...]
"""Nodes by number; node 0's part first."""


def splits(nodes: Sequence[int]) -> Iterator[Parts]:
    """Yield all ways to divide nodes into parts, each part in order."""
    if not nodes:
        yield ()
        return
    first, rest = nodes[0], nodes[1:]
    for others in splits(rest):
        yield ((first,), *others)
        for place, part in enumerate(others):
            yield ((first, *part), *others[:place], *others[place + 1 :])


def goes_on(parts: Parts, *, killed: bool) -> list[tuple[int, ...]]:
    """Return the parts that go on; ``killed``: node 0's agent was killed, and is in no part."""
    nodes = sum(map(len, parts)) + killed
    found = [] if killed or not _node_zero_goes_on(parts[0], nodes) else [parts[0]]
    others = parts if killed else parts[1:]
    return [*found, *(part for part in others if _follows(part, nodes, killed=killed))]


def _node_zero_goes_on(part: tuple[int, ...], nodes: int) -> bool:
    job = running_job(nodes)
    for number in set(range(nodes)) - set(part):
        job.is_silent(number)
    for number in part:
        job.is_done(number, [(fate(number, ending=None or fate(0, 0).ending), 0.0)])
    job.waits(SECONDS)
    return job.state.phase is JobPhase.RUNNING and job.state.attempt.number == 1


def _follows(part: tuple[int, ...], nodes: int, *, killed: bool) -> bool:
    """Return whether the first successor in a part goes on with it."""
    known = known_to(running_job(nodes), 1)
    leaders = [each.node_rank for each in known.successors if each.node_rank in part]
    if not leaders:
        return False
    successor = gathers(known, leaders[0], ended=(0,) if killed else ())
    for number in set(part) - {leaders[0]}:
        comes(successor, claiming(known, number, number), number)
    successor.waits(SECONDS)
    return successor.state.phase is JobPhase.RUNNING


def table() -> Iterator[str]:
    """Yield the lines of the table in docs/lost_nodes.md."""
    for killed in (False, True):
        for nodes in range(2, 6):
            lines = dict[tuple[int, ...], str]()
            for parts in splits(range(int(killed), nodes)):
                first, *rest = (len(part) for part in parts)
                others = sorted((first, *rest) if killed else rest, reverse=True)
                sizes = tuple(others) if killed else (first, *others)
                if len(parts) > 1 or killed:
                    lines[sizes] = _line(nodes, sizes, goes_on(parts, killed=killed), killed=killed)
            yield from (lines[each] for each in sorted(lines, reverse=True))


def _line(nodes: int, sizes: tuple[int, ...], going: list[tuple[int, ...]], *, killed: bool) -> str:
    parts = " + ".join(map(str, sizes))
    shown = f"node 0 killed; {parts}" if killed else parts
    if not going:
        return f"| {nodes} | {shown} | all end |"
    [part] = going
    with_zero = "with node 0" if 0 in part else "with a successor"
    return f"| {nodes} | {shown} | {len(part)} {with_zero} |"
