"""Random faults, one or several at once: every job ends on all nodes, with the right exit code."""

import re
import signal
from collections.abc import Sequence

import pytest

from tests.contract.launched import Ended, Launcher
from tests.hosts.chaos import STEPS_TOGETHER, Round, drawn, play, verdicts
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes
from tests.rounds import numbers

BUG_OF_OURS = 6

LAST_WORDS = re.compile(r"^clusterrun: (?!.*: stopping ).*\n(  .*\n)*\Z", re.MULTILINE)
"""The last line of a report or an error."""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", numbers(100))
def test_random_faults_end_the_job(
    number: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """No false success, nothing left behind, and the same reason on each node."""
    round_ = drawn(number)

    ends = play(round_, Nodes(clusterrun, hosts, STEPS_TOGETHER), hosts, clusterrun.folder)

    said = f"{round_}\n" + "\n".join(f"--- node {i}: {end}" for i, end in enumerate(ends))
    assert no_false_success(round_, ends), said
    assert [job.left() for job in clusterrun.jobs] == [[]] * len(ends), said
    assert [host.processes() for host in hosts] == [[]] * len(hosts), said
    for node in round_.spared:
        assert explains_failure(ends[node]), said
        assert not list((clusterrun.folder / f"tmp{node}").iterdir()), said
    if not round_.disturbs_the_network:
        assert len(set(verdicts(clusterrun.folder))) <= 1, (verdicts(clusterrun.folder), said)


LINES_MISSING = (
    "exit code 3: its relay stopped responding: the last lines of workers may be missing"
)


def no_false_success(round_: Round, ends: Sequence[Ended]) -> bool:
    """Return whether all ranks made all steps, if an agent exited with 0.

    The lines of an agent whose relay was frozen at the end may be missing: it says so, and exits with 3.
    """
    if any(end.code == 3 and LINES_MISSING in end.err for end in ends):
        return True
    done = {
        rank
        for rank in range(sum(round_.workers))
        for end in ends
        if f"rank {rank} is done\n" in end.out
    }
    return all(end.code != 0 for end in ends) or len(done) == sum(round_.workers)


def explains_failure(end: Ended) -> bool:
    """Return whether the last lines explain an end that is not a success, and it is not a bug."""
    explained = end.code in (0, 128 + signal.SIGINT) or LAST_WORDS.search(end.err)
    return bool(explained) and end.code >= 0 and end.code != BUG_OF_OURS
