"""The coordinator's messages to users: notices, errors and hints."""

import signal
from collections.abc import Collection, Iterable
from typing import assert_never

from clusterrun.coordination.job_state import JobState
from clusterrun.coordination.terms import Terms
from clusterrun.domain.counts import counted
from clusterrun.domain.cpuset import runs
from clusterrun.domain.messages import ARGUMENTS, Hello
from clusterrun.domain.outcome import (
    ExternalCause,
    HelperFailed,
    Interrupted,
    NodeLost,
    NotSuspended,
    OutputGone,
    Suspended,
)
from clusterrun.domain.signal_names import signal_name
from clusterrun.domain.stacks import named
from clusterrun.domain.suspension import BY_COMMAND
from clusterrun.errors import exit_code_of_signal

SECONDS_TO_FIRST_NOTICE = 5.0
SECONDS_BETWEEN_NOTICES = 30.0
"""While nodes join."""

MOST_NAMES = 8
"""A longer list is cut."""

CONTEXT = 20
"""Characters of two long values that are shown before their first difference."""

REPLACED = "another clusterrun, started later on this host, has this node's place in the job"
IS_REPLACED = "another clusterrun, started later on its host, has its place"


def node(hello: Hello) -> str:
    """Return "hostA (pid 12)"."""
    return f"{hello.host} (pid {hello.pid})"


def lost(node: NodeLost) -> str:
    """Return "node 1 (n1) is gone"."""
    return f"node {node.node_rank} ({node.host}) {node.how}"


def shortened(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def listed(names: Iterable[str]) -> str:
    """Return "a, b, c", or "a, b, ... and 12 more"; equal ones once."""
    each = list(dict.fromkeys(names))
    if len(each) <= MOST_NAMES:
        return ", ".join(each)
    return f"{', '.join(each[: MOST_NAMES - 1])} and {len(each) - MOST_NAMES + 1} more"


def waiting(state: JobState, now: float) -> str:
    """Return "2 of 4 nodes have joined: n0, n1; waiting for n2, n3 (30 s of 600 s)"."""
    spent = f"{now - state.began:.0f} s of {state.terms.timeout:g} s"
    exports = f"; {state.terms.exports}" if state.terms.exports else ""
    joined = f"{_count(state)} have joined: {_joined(state)}"
    return f"{joined}; waiting for {_missing(state)} ({spent}){exports}"


def last_call(state: JobState, minimum: int, seconds: float) -> str:
    """Return "2 of 4 nodes have joined: n0, n1; waiting 20 s more for n2, n3 (the minimum is 1)"."""
    joined = f"{_count(state)} have joined: {_joined(state)}"
    return (
        f"{joined}; waiting {seconds:.0f} s more for {_missing(state)} (the minimum is {minimum})"
    )


def begins_without(state: JobState) -> str:
    """Return the notice at the end of the last call."""
    return f"starting with {_count(state)}: {_joined(state)}; without {_missing(state)}"


def nodes_missing(state: JobState) -> str:
    """Return the error of a job whose nodes did not all join in time."""
    within = f"within {state.terms.timeout:g} s"
    return f"{_count(state)} joined {within}: {_joined(state)}; missing: {_missing(state)}"


def hint_to_nodes_missing(state: JobState) -> str:
    """Return what may have kept them away, and what to try."""
    refused = [f"Refused meanwhile: {text}." for text in state.refused[:MOST_NAMES]]
    place = f"Run the same command on every node; each must reach {state.terms.place}."
    exports = [f"If this is one node: {state.terms.exports}."] if state.terms.exports else []
    return "\n".join([*refused, *exports, place, "--rdzv-timeout makes the job wait longer."])


def still_running(state: JobState) -> str:
    """Return the notice on a node whose workers have all exited, while others run."""
    busy = (each for each in state.ranks if each not in state.attempt.reports)
    names = (
        state.members.hellos[each].host for each in busy if each not in state.lost_before_report
    )
    return f"all workers of this node have exited; still running: {listed(names)}"


def paused(state: JobState, connection: int) -> str:
    """Return the notice that a user paused a node, or let it continue."""
    node = f"node {state.ranks[connection]} ({state.members.hellos[connection].host})"
    if connection in state.paused:
        return f"{node} is paused: the job waits until it is continued"
    return f"{node} continues"


def stacks_requested(host: str) -> str:
    """Return the notice on node 0 of a SIGQUIT on another node."""
    return f"SIGQUIT on {host}: the Python stacks of all ranks follow; nothing is ended"


def nothing_moves(seconds: float) -> str:
    """Return what ``--hang-timeout`` has found."""
    return f"no rank has printed or exited for {round(seconds, 1):g} s"


def hangs(seconds: float, then: str) -> str:
    """Return the notice of ``--hang-timeout``, and what is done then."""
    return f"{nothing_moves(seconds)}: the Python stacks of all ranks follow; {then}"


def waited_for(ranks: Collection[int]) -> str:
    """Return the notice of which ranks keep the others waiting."""
    return f"the other ranks wait for {named(ranks)}"


def _count(state: JobState) -> str:
    return f"{len(state.members)} of {state.terms.nodes} nodes"


def _missing(state: JobState) -> str:
    """Return which nodes have not joined, or how many if that is not known."""
    return _missing_names(state) or counted(state.terms.nodes - len(state.members), "node")


def _missing_names(state: JobState) -> str:
    hosts, nodes, members = state.terms.hosts, state.terms.nodes, state.members
    missing = [rank for rank in range(nodes) if rank not in members.by_rank]
    all_have_ranks = len(members.by_rank) == len(members)
    if all_have_ranks and len(hosts) == nodes:
        return listed(hosts[rank] for rank in missing)
    if hosts:
        joined = {_short(hello.host) for hello in members.hellos.values()}
        return listed(host for host in hosts if _short(host) not in joined)
    if all(hello.rank is not None for hello in members.hellos.values()):
        return f"node rank{'s' if len(missing) > 1 else ''} {', '.join(runs(missing))}"
    return ""


def _short(host: str) -> str:
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]


def _joined(state: JobState) -> str:
    by_connection = {connection: rank for rank, connection in state.members.by_rank.items()}
    hellos = state.members.hellos
    # Members without a rank after the others, in the order of joining.
    order = sorted(hellos, key=lambda each: by_connection.get(each, state.terms.nodes))
    return listed(hellos[each].host for each in order)


def same_rank(rank: int, one: Hello, other: Hello) -> str:
    """Return the error of two nodes with one rank."""
    return f"two nodes have node rank {rank}: {node(one)} and {node(other)}"


def rank_of_owner(place: str, owner: Hello, other: Hello) -> str:
    """Return the error of a node that has rank 0, but not node 0's address."""
    return f"{node(other)} has node rank 0, but {place} is an address of {node(owner)}"


def no_such_rank(hello: Hello, nodes: int) -> str:
    """Return the error of a rank that is too high."""
    ranks = f"the ranks of {nodes} nodes are 0-{nodes - 1}"
    return f"{node(hello)} has node rank {hello.rank}, but {ranks}"


def too_many(nodes: int, joined: Collection[Hello], newcomer: Hello) -> str:
    """Return the error of one node too many."""
    names = listed(node(hello) for hello in joined)
    return f"nnodes is {nodes}, but {nodes + 1} nodes have called: {names} and {node(newcomer)}"


def two_values(name: str, one: Hello, other: Hello) -> str:
    """Return "nnodes is 2 on hostA, 3 on hostB"."""
    first, second = _two_values(one.must.get(name), other.must.get(name))
    return f"{name} is {first} on {_place(one, other)}, {second} on {_place(other, one)}"


def disagreement(name: str, one: Hello, other: Hello) -> str:
    """Return the warning that two nodes do not run quite the same."""
    here, there = _place(one, other), _place(other, one)
    if name == ARGUMENTS:
        return f"not the same {name} on all nodes: {here} and {there} differ"
    first, second = _two_values(one.should.get(name), other.should.get(name))
    return f"not the same {name} on all nodes: {first} on {here}, {second} on {there}"


def _place(one: Hello, other: Hello) -> str:
    return node(one) if one.host == other.host else one.host


def _two_values(one: str | None, other: str | None) -> tuple[str, str]:
    """Return two values, long ones from shortly before their first difference."""
    if one is None or other is None:
        return shortened(one or "not set"), shortened(other or "not set")
    pairs = enumerate(zip(one, other, strict=False))
    differ_at = next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, differ_at - CONTEXT)
    dots = "..." if start else ""
    return dots + shortened(one[start:]), dots + shortened(other[start:])


def other_run_id(terms: Terms, other: Hello) -> str:
    """Return the error of a node that belongs to another job."""
    return (
        f'{terms.place} belongs to another job: its run id is "{shortened(terms.run_id)}",'
        f' that of {node(other)} is "{shortened(other.run_id)}"'
    )


def other_user(terms: Terms, own: Hello, other: Hello) -> str:
    """Return the error of another user's node."""
    return (
        f"{terms.place} belongs to a job of user {own.user_id},"
        f" {node(other)} runs as user {other.user_id}"
    )


def has_started(state: JobState) -> str:
    """Return the error of a node that calls when the job has started."""
    if state.terms.last_call is not None:
        count = counted(state.terms.nodes, "node")
        return f"the job at {state.terms.place} has started with {count}: {state.hosts}"
    return f"the job at {state.terms.place} has all its {state.terms.nodes} nodes: {state.hosts}"


def external_cause(host: str, cause: ExternalCause) -> str:
    """Return what ends the job from outside its workers, and on which host."""
    match cause:
        case Interrupted(number):
            return f"{host} got {signal_name(number)}"
        case OutputGone():
            return f"the output of {host} is closed"
        case HelperFailed(name, how, _):
            return f"the {shortened(name)} {shortened(how)}"
        case Suspended(by, step):
            return f"suspended at step {step} ({shortened(by)})"
        case NotSuspended(by, _, grace, is_given_up=given_up):
            when = "when it was asked for again" if given_up else f"within {grace:g} s"
            return f"not all ranks saved {when} ({shortened(by)})"
        case _:
            assert_never(cause)


def suspension_agreed(by: str, step: int, grace: float) -> str:
    """Return the notice on node 0 of the step at which all ranks save."""
    when = f"at step {step}" if step else "at their first call of suspend.requested()"
    return f"{by}: all ranks save {when} and end (--suspend-grace {grace:g} s)"


def suspension_waits(by: str, unsaved: Collection[int], silent: Collection[int]) -> str:
    """Return which ranks keep a job from being suspended, and how to go on without them."""
    late = [f"{named(unsaved)} to save"] if unsaved else []
    if silent:
        late.append(f"{named(silent)} to call suspend.requested() for the first time")
    again = f"; {BY_COMMAND}, typed again, ends the job without waiting" if unsaved else ""
    return f"{by}: waits for {' and for '.join(late) or 'an answer of the nodes'}{again}"


def suspension_cancelled(by: str, rank: int | None) -> str:
    """Return why a job is not suspended: a rank has ended with 0."""
    who = "workers have" if rank is None else f"rank {rank} has"
    return f"{by}: not suspended, since {who} exited already"


def no_restart(number: int) -> str:
    """Return what a signal means while the workers are being stopped for a restart."""
    what = "interrupted" if number == signal.SIGINT else signal_name(number)
    return f"{what}: no restart; exit code {exit_code_of_signal(number)}"


def no_restart_left(limit: int) -> str:
    """Return why a job that ``--on-hang`` should restart ends."""
    return f"no restart is left (--max-restarts {limit})"


def ended_while_waiting(host: str, cause: Interrupted | HelperFailed) -> str:
    """Return the error of members whose node 0 ended before the job began."""
    if isinstance(cause, Interrupted):
        return f"{host} (node 0) got {signal_name(cause.number)} while it waited for other nodes"
    return f"the {cause.name} of {host} (node 0) {cause.how} while it waited for other nodes"
