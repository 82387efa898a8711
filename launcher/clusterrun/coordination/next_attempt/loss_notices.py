"""What is printed of lost nodes, of nodes that wait, and of why a lost node ends the job."""

from collections.abc import Collection

from clusterrun.coordination.job_notices import listed, node
from clusterrun.coordination.job_state import JobState
from clusterrun.coordination.next_attempt.reform_rules import ReformRules
from clusterrun.domain.counts import counted
from clusterrun.domain.messages import Hello

WENT_ON = "the other nodes have gone on without this one"
"""Why the report of a node that was taken for lost is not that of the job."""


NO_SUCCESSOR = "no successor of it has gathered more than half of the nodes"
"""Why a node ends that has lost the coordinator of a job that could go on."""


def enough_wait(state: JobState) -> str:
    """Return the error of a newcomer, if as many nodes wait as have places."""
    waiting = listed(state.members.hellos[each].host for each in state.waiting)
    return f"enough nodes wait for a place in the job at {state.terms.place}: {waiting}"


def waits_for_a_place(hello: Hello) -> str:
    """Return the notice on node 0 of a node that joins while the job runs."""
    return f"{node(hello)} has joined and waits to take the place of a lost node"


def fails_its_check(hello: Hello) -> str:
    """Return the notice on node 0 of a node that is left out of the first attempt."""
    return f"{node(hello)} is left out, as it fails its check: {hello.fault}"


def fail_their_check(hellos: Collection[Hello]) -> str:
    """Return why a job cannot begin: too few nodes pass their check."""
    first = next(iter(hellos))
    others = f", and {counted(len(hellos) - 1, 'other node')}" if len(hellos) > 1 else ""
    return f"{node(first)}{others} fails its check (--check-nodes): {first.fault}"


def waits_no_more(hello: Hello, why: str) -> str:
    """Return the notice on node 0 of a node that waited for a place and is lost."""
    return f"{node(hello)}, which waited for a place, {why}"


def restarts_later(seconds: float, quick: int) -> str:
    """Return the notice of the pause between restarts that follow each other too quickly."""
    return (
        f"restarting in {seconds:g} s, since workers have failed within 10 s of their start"
        f" {quick} times in a row"
    )


NOT_TRUSTED = "this node is left out (--exclude-after), and waits until the job ends"
"""The notice on a node whose machine has failed too often."""


def waits_for_a_multiple(state: JobState) -> str:
    """Return the notice on a node that is left out of an elastic world."""
    multiple = state.terms.reforming.multiple
    return (
        f"this node waits for a place: the world has {counted(state.terms.nodes, 'node')}"
        f" (--elastic-multiple {multiple})"
    )


def _minimum(rules: ReformRules) -> str:
    multiple = f", a multiple of {rules.multiple}" if rules.multiple > 1 else ""
    return f"{rules.fewest}{multiple}"


def too_many_losses(most: int) -> str:
    """Return why a lost node ends the job: --max-node-losses."""
    return f"--max-node-losses allows {most}"


def no_majority(left: int, of: int) -> str:
    """Return why a lost node ends the job: another part of it may go on, too."""
    return (
        f"{left} of {of} nodes are left, not more than half, and the others may still run:"
        " two parts of a job must not go on at once"
    )


def no_node_for(state: JobState) -> str:
    """Return why lost nodes end the job: nothing takes their places."""
    rules = state.terms.reforming
    within = (
        f" within {rules.rejoin_timeout:g} s (--rejoin-timeout)" if rules.rejoin_timeout else ""
    )
    if rules.is_elastic:
        left = len(state.ranks) - len(state.lost) + len(state.waiting)
        return f"{counted(left, 'node')} left, and the minimum is {_minimum(rules)}{within}"
    places = listed(f"node {each.node_rank} ({each.host})" for each in state.lost.values())
    return f"no other node has taken the place of {places}{within}"
