"""Nodes that are left out of the next attempt, since their workers have failed by faults of the machine. Pure.

Failures are counted by host: a node that leaves and comes back is no better. Node 0 is never left
out, since its agent runs the coordinator.
"""

import signal

from clusterrun.coordination.job_state import JobState
from clusterrun.coordination.members import OWN
from clusterrun.coordination.next_attempt.places import Candidates, next_places
from clusterrun.domain.outcome import Fate, Killed, NodeLost, Reason, WorkerFailed
from clusterrun.domain.succession import HostFaults

MOST_HOSTS = 64
"""Hosts whose faults are counted; most often there is one."""


def note_failure(state: JobState, why: Reason) -> None:
    """Count the failure that ended an attempt, if a fault of the machine was its cause."""
    if not state.terms.reforming.exclude_after or not isinstance(why, WorkerFailed):
        return
    fault, host = fault_of(why.cause), why.cause.host
    if not fault or (host not in state.faults and len(state.faults) == MOST_HOSTS):
        return
    count = state.faults[host].count if host in state.faults else 0
    state.faults[host] = HostFaults(host, count + 1, fault)


def fault_of(cause: Fate) -> str:
    """Return the fault of the machine that a failure points to; "" if it points to none."""
    if cause.ending == Killed(signal.SIGBUS):
        return cause.machine_fault or "SIGBUS"
    if cause.out_of_memory and cause.ending != Killed(signal.SIGKILL):
        # The OOM killer struck somewhere on the machine, and not this worker.
        return ""
    return cause.machine_fault


def bad_members(state: JobState) -> frozenset[int]:
    """Return the members that have failed their check, or are on hosts with too many faults."""
    limit = state.terms.reforming.exclude_after
    hosts = {each.host for each in state.faults.values() if each.count >= limit > 0}
    return frozenset(
        each
        for each, hello in state.members.hellos.items()
        if (hello.fault or hello.host in hosts) and each != OWN
    )


def next_ranks(state: JobState) -> dict[int, int] | None:
    """Return the node ranks of the next attempt as ``next_places`` does, for what the state knows."""
    candidates = Candidates(state.ranks, state.lost, state.waiting, bad_members(state))
    return next_places(candidates, state.members.hellos, state.terms.reforming)


def left_out(state: JobState, connection: int) -> NodeLost:
    """Return which node is left out after failures of its workers, for messages."""
    faults = state.faults[state.members.hellos[connection].host]
    how = f"is left out after {faults.count} failures by its machine ({faults.last})"
    return NodeLost(state.ranks[connection], faults.host, how)
