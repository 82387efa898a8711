"""How fast the nodes add up: the links of a ring, then all nodes together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from clusterrun.node_checks.comparison import (
    compare_links,
    describe_all_reduce,
    describe_failed_all_reduce,
)
from clusterrun.node_checks.findings import JobFinding, Node
from clusterrun.node_checks.meeting import Meeting
from clusterrun.node_checks.speeds import AllReduce, all_reduces, open_store, ring_rounds

if TYPE_CHECKING:
    from torch.distributed import Store

SECONDS_FOR_A_ROUND = 40.0


class Round(Struct, frozen=True):
    """One node's part in one round."""

    fault: str
    """What torch says; "" if all went well, or this node had no part in it."""
    found: tuple[AllReduce, ...] = ()


class SpeedChecks:
    """One node's part in the all_reduces of pairs and of all nodes."""

    def __init__(self, meeting: Meeting, nodes: Sequence[Node]) -> None:
        self._meeting = meeting
        self._nodes = nodes
        has_gpus = all(node.gpus and "NCCL" in node.versions for node in nodes)
        self._backend = "nccl" if has_gpus else "gloo"
        self._store: Store | None = None
        self._port = 0
        self._rounds = 0

    def run(self, labels: Sequence[str]) -> Iterator[JobFinding]:
        """Yield what node 0 finds out about links; the others take part.

        Raises:
            Silent: a node does not answer.

        """
        if self._meeting.rank == 0:
            self._store = open_store(self._nodes[0].main_addresses[0], 0, is_master=True)
            self._port = self._store.port  # type: ignore[attr-defined]
        self._port = self._meeting.announce(self._port, int)
        links: dict[tuple[int, int], AllReduce] = {}
        for pairs in ring_rounds(len(labels)):
            answers = self._add_up(pairs)
            faults = [each.fault for each in answers]
            if any(faults):
                yield describe_failed_all_reduce(self._backend, labels, faults)
                return
            links |= {pair: answers[pair[0]].found[-1] for pair in pairs}
        yield from compare_links(labels, links)
        answers = self._add_up([range(len(labels))])
        faults = [each.fault for each in answers]
        if any(faults):
            yield describe_failed_all_reduce(self._backend, labels, faults)
        else:
            yield describe_all_reduce(self._backend, answers[0].found)

    def _add_up(self, groups: Sequence[Sequence[int]]) -> list[Round]:
        """Have each group add up, all at once; return how it went on each node."""
        self._rounds += 1
        own = Round("")
        for members in groups:
            if self._meeting.rank in members:
                own = self._add_up_with(members)
        return self._meeting.share(own, Round, SECONDS_FOR_A_ROUND)

    def _add_up_with(self, members: Sequence[int]) -> Round:
        name = f"{self._rounds}-{members[0]}"
        try:
            host = self._nodes[0].main_addresses[0]
            self._store = self._store or open_store(host, self._port, is_master=False)
            found = all_reduces(self._store, name, members, self._meeting.rank, self._backend)
        except RuntimeError as error:
            return Round(str(error).strip() or "no reason given")
        return Round("", tuple(found))
