"""What the coordinator tells people: lines, errors and hints, all in one place. Pure."""

from collections.abc import Iterable, Sequence
from typing import assert_never

from clusterrun.coordination.messages import (
    ARGUMENTS,
    Hello,
)
from clusterrun.coordination.state import State, Terms
from clusterrun.domain.cpuset import runs
from clusterrun.domain.outcome import (
    ExternalCause,
    HelperFailed,
    Interrupted,
    OutputGone,
)
from clusterrun.domain.signal_names import signal_name

MOST_NAMES = 8
"""A list for people; what is longer is cut."""

CONTEXT = 20
"""Characters of two long values that are shown before their first difference."""

STARTED_AGAIN = "another clusterrun, started later on this host, has this node's place in the job"
LEFT_OVER = "another clusterrun, started later on its host, has its place"


def node(hello: Hello) -> str:
    """Return "hostA (pid 12)"."""
    return f"{hello.host} (pid {hello.pid})"


def shortened(text: str, most: int = 80) -> str:
    """Return a text that is not too long."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def listed(names: Iterable[str]) -> str:
    """Return "a, b, c", or "a, b, ... and 12 more"; equal ones once."""
    each = list(dict.fromkeys(names))
    if len(each) <= MOST_NAMES:
        return ", ".join(each)
    return f"{', '.join(each[: MOST_NAMES - 1])} and {len(each) - MOST_NAMES + 1} more"


def waiting(state: State, now: float) -> str:
    """Return "waiting for 2 of 4 nodes: n2, n3 (joined: n0, n1; 30 s of 600 s)"."""
    spent = f"{now - state.began:.0f} s of {state.terms.timeout:g} s"
    exports = f"; {state.terms.exports}" if state.terms.exports else ""
    return f"waiting for {_missing(state)} ({_joined(state)}; {spent}){exports}"


def last_call(state: State, seconds: float) -> str:
    """Return "waiting 20 s more for 2 of 4 nodes: n2, n3; 1 is enough (joined: n0, n1)"."""
    enough = f"{state.terms.last_call.fewest} would be enough" if state.terms.last_call else ""
    return f"waiting {seconds:.0f} s more for {_missing(state)}; {enough} ({_joined(state)})"


def begins_without(state: State) -> str:
    """Return what is said when the last call is over."""
    return f"beginning without {_missing(state)} ({_joined(state)})"


def never_came(state: State) -> str:
    """Return the error of a job whose nodes did not all come in time."""
    return f"waited {state.terms.timeout:g} s for {_missing(state)} ({_joined(state)})"


def hint_to_never_came(state: State) -> str:
    """Return what may have kept them away."""
    refused = [f"Refused meanwhile: {text}." for text in state.refused[:MOST_NAMES]]
    place = f"Each node runs the same command and must reach {state.terms.place}."
    exports = [f"If this is one node: {state.terms.exports}."] if state.terms.exports else []
    return "\n".join([*refused, *exports, place, "--rdzv-timeout gives them longer."])


def still_running(state: State) -> str:
    """Return what a node that is done early is told."""
    busy = [connection for connection in state.ranks if connection not in state.reports]
    names = (state.members[each].host for each in busy if each not in state.lost)
    return f"all workers of this node have ended; still running: {listed(names)}"


def suspended(state: State, connection: int) -> str:
    """Return who is stopped by its user, or goes on again."""
    node = f"node {state.ranks[connection]} ({state.members[connection].host})"
    if connection in state.suspended:
        return f"{node} is suspended: the job waits until it is continued"
    return f"{node} goes on"


def _missing(state: State) -> str:
    count = state.terms.nodes - len(state.members)
    names = _missing_names(state)
    return f"{count} of {state.terms.nodes} nodes{f': {names}' if names else ''}"


def _missing_names(state: State) -> str:
    """Return who has not come; "" where nothing tells."""
    hosts, nodes = state.terms.hosts, state.terms.nodes
    missing = [rank for rank in range(nodes) if rank not in state.claims]
    all_claim = len(state.claims) == len(state.members)
    if all_claim and len(hosts) == nodes:
        return listed(hosts[rank] for rank in missing)
    if hosts:
        there = {_short(hello.host) for hello in state.members.values()}
        return listed(host for host in hosts if _short(host) not in there)
    if all(hello.rank is not None for hello in state.members.values()):
        return f"rank{'s' if len(missing) > 1 else ''} {', '.join(runs(missing))}"
    return ""


def _short(host: str) -> str:
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]


def _joined(state: State) -> str:
    by_connection = {connection: rank for rank, connection in state.claims.items()}
    # Those without a rank after the others, as they came.
    order = sorted(state.members, key=lambda each: by_connection.get(each, state.terms.nodes))
    return f"joined: {listed(state.members[each].host for each in order)}"


def same_rank(rank: int, one: Hello, other: Hello) -> str:
    """Return the error of two nodes that say the same of themselves."""
    return f"two nodes say they are rank {rank}: {node(one)} and {node(other)}"


def rank_of_owner(place: str, owner: Hello, other: Hello) -> str:
    """Return the error of a node that says it is node 0, and hasn't the address of node 0."""
    return f"{node(other)} says it is rank 0, but {place} is an address of {node(owner)}"


def no_such_rank(hello: Hello, nodes: int) -> str:
    """Return the error of a rank that can't be."""
    return f"{node(hello)} says it is rank {hello.rank}, but {nodes} nodes have ranks 0-{nodes - 1}"


def too_many(nodes: int, there: Sequence[Hello], newcomer: Hello) -> str:
    """Return the error of a node too many."""
    names = listed(node(hello) for hello in there)
    return f"{nodes + 1} nodes have come, and nnodes is {nodes}: {names} and {node(newcomer)}"


def contradiction(name: str, one: Hello, other: Hello) -> str:
    """Return "hostA says nnodes 2, hostB says nnodes 3"."""
    first, second = _two_values(one.must.get(name), other.must.get(name))
    return f"{_who(one, other)} says {name} {first}, {_who(other, one)} says {name} {second}"


def disagreement(name: str, one: Hello, other: Hello) -> str:
    """Return the warning that two nodes do not run quite the same."""
    if name == ARGUMENTS:
        return f"not the same {name} on all nodes: {_who(one, other)} and {_who(other, one)} differ"
    first, second = _two_values(one.should.get(name), other.should.get(name))
    differ = f"{first} on {_who(one, other)}, {second} on {_who(other, one)}"
    return f"not the same {name} on all nodes: {differ}"


def _who(one: Hello, other: Hello) -> str:
    return node(one) if one.host == other.host else one.host


def _two_values(one: str | None, other: str | None) -> tuple[str, str]:
    """Return two values for people, long ones from shortly before their first difference."""
    if one is None or other is None:
        return shortened(one or "nothing"), shortened(other or "nothing")
    pairs = enumerate(zip(one, other, strict=False))
    differ_at = next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, differ_at - CONTEXT)
    dots = "..." if start else ""
    return dots + shortened(one[start:]), dots + shortened(other[start:])


def other_run_id(terms: Terms, other: Hello) -> str:
    """Return the error of a node that belongs to another job."""
    return (
        f'{terms.place} is where another job meets: its run id is "{shortened(terms.run_id)}",'
        f' that of {node(other)} is "{shortened(other.run_id)}"'
    )


def other_user(terms: Terms, other: Hello) -> str:
    """Return the error of a node of somebody else."""
    return (
        f"{terms.place} is where a job of user {terms.hello.user_id} meets,"
        f" {node(other)} is user {other.user_id}'s"
    )


def complete(state: State) -> str:
    """Return the error of a node that comes when all are there."""
    names = listed(hello.host for hello in state.members.values())
    if state.terms.last_call is not None:
        count = f"{state.terms.nodes} node{'' if state.terms.nodes == 1 else 's'}"
        return f"the job at {state.terms.place} has begun with {count}: {names}"
    return f"the job at {state.terms.place} has all its {state.terms.nodes} nodes: {names}"


def order_to_stop(host: str, cause: ExternalCause) -> str:
    """Return why all nodes are to stop, if not for a worker."""
    match cause:
        case Interrupted(number):
            return f"{host} got {signal_name(number)}"
        case OutputGone():
            return f"nobody reads the output of {host} any more"
        case HelperFailed(name, how, _):
            return f"the {shortened(name)} {shortened(how)}"
        case _:
            assert_never(cause)


def interrupted_while_waiting(host: str, number: int) -> str:
    """Return why nothing comes of it, for those who have joined."""
    return f"{host} (node 0) got {signal_name(number)} while it waited for other nodes"
