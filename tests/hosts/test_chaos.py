"""Random faults, one or several at a time: whatever happens, a job ends, truly and on all nodes."""

import re
import signal
from collections.abc import Sequence

import pytest

from tests.contract.launched import Ended, Launcher
from tests.hosts.chaos import STEPS_TOGETHER, Round, drawn, play, verdicts
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes

BUG_OF_OURS = 6

LAST_WORDS = re.compile(r"^clusterrun: (?!.*: stopping ).*\n(  .*\n)*\Z", re.MULTILINE)
"""A line of ours that tells how it ended, and what to do about it."""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(100))
def test_a_random_round(number: int, hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """No success that is none, nothing left behind, a reason on each node, and the same one."""
    round_ = drawn(number)

    ends = play(round_, Nodes(clusterrun, hosts, STEPS_TOGETHER), hosts, clusterrun.folder)

    said = f"{round_}\n" + "\n".join(f"--- node {i}: {end}" for i, end in enumerate(ends))
    assert no_false_success(round_, ends), said
    assert [job.left() for job in clusterrun.jobs] == [[]] * len(ends), said
    assert [host.processes() for host in hosts] == [[]] * len(hosts), said
    for node in round_.spared:
        assert says_why(ends[node]), said
        assert not list((clusterrun.folder / f"tmp{node}").iterdir()), said
    if not round_.disturbs_the_network:
        assert len(set(verdicts(clusterrun.folder))) <= 1, (verdicts(clusterrun.folder), said)


def no_false_success(round_: Round, ends: Sequence[Ended]) -> bool:
    """Tell whether an agent that ended with 0 had a job all of whose ranks made all steps."""
    done = {
        rank
        for rank in range(sum(round_.workers))
        for end in ends
        if f"rank {rank} is done\n" in end.out
    }
    return all(end.code != 0 for end in ends) or len(done) == sum(round_.workers)


def says_why(end: Ended) -> bool:
    """Tell whether an end that is no success is explained by its last words, and is no bug."""
    explained = end.code in (0, 128 + signal.SIGINT) or LAST_WORDS.search(end.err)
    return bool(explained) and end.code >= 0 and end.code != BUG_OF_OURS
