"""Which nodes reach each other, by which addresses and names. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from clusterrun.machine.health.finding import Level
from clusterrun.machine.health.network import LOOPBACK
from clusterrun.node_checks.findings import JobFinding, Node
from clusterrun.node_checks.reach import Call

FAR = 5.0
"""Times the median of all nodes."""
FEW_SECONDS = 0.002
"""A round trip that is shorter is not worth a word: most of it is the two processes' own."""

Calls = Sequence[Sequence[Call]]
"""What each node, by its rank, found of its peers."""


def check_calls(labels: Sequence[str], nodes: Sequence[Node], calls: Calls) -> Iterator[JobFinding]:
    """Yield which addresses can't be reached, and from which nodes."""
    asked: dict[tuple[int, str], dict[int, str]] = {}
    for rank, made in enumerate(calls):
        for call in made:
            asked.setdefault((call.to, call.address), {})[rank] = call.fault
    bad = False
    for (to, address), faults in asked.items():
        deaf = {rank: fault for rank, fault in faults.items() if fault}
        if not deaf:
            continue
        bad = True
        callers = tuple(labels[rank] for rank in deaf)
        who = "no node" if len(deaf) == len(faults) and len(faults) > 1 else ", ".join(callers)
        fault = next(iter(deaf.values()))
        verb = "reaches" if who == "no node" else "can't reach"
        words = f"{who} {verb} {labels[to]} at {address}: {fault}"
        if address in nodes[to].main_addresses:
            words += _other_way(labels, nodes, to, deaf, calls)
            yield JobFinding(Level.FAILURE, "ports", words, _advice(fault), (labels[to], *callers))
        else:
            use = f"NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to {nodes[to].interface}"
            advice = f"libraries may choose this address: set {use}, or repair it"
            yield JobFinding(Level.WARNING, "addresses", words, advice, (labels[to], *callers))
    if asked and not bad:
        total = sum(map(len, calls))
        yield JobFinding(Level.OK, "ports", f"{total} of {total} connections, in both directions")


def check_round_trips(labels: Sequence[str], calls: Calls) -> Iterator[JobFinding]:
    """Yield which nodes are far from all others."""
    nearest = {}
    for rank, made in enumerate(calls):
        if times := [call.seconds for call in made if not call.fault]:
            nearest[rank] = min(times)
    if not nearest:
        return
    usual = median(nearest.values())
    far = [rank for rank, took in nearest.items() if took > max(FAR * usual, FEW_SECONDS)]
    for rank in far:
        words = (
            f"{labels[rank]}: {_milliseconds(nearest[rank])}, the median is {_milliseconds(usual)}"
        )
        advice = "check its cable, its switch and its routes (traceroute)"
        yield JobFinding(Level.WARNING, "round trip", words, advice, (labels[rank],))
    if not far:
        yield JobFinding(Level.OK, "round trip", f"{_milliseconds(usual)} (median)")


def check_names(
    labels: Sequence[str], nodes: Sequence[Node], resolved: Sequence[Mapping[str, Sequence[str]]]
) -> Iterator[JobFinding]:
    """Yield which nodes take another node's name for another machine.

    Args:
        labels: of the nodes.
        nodes: how they describe themselves.
        resolved: for each node, the addresses that a host's name leads to; none if it is unknown
            there, which jobs that use addresses do not mind.

    """
    bad = False
    for rank, known in enumerate(resolved):
        for peer, node in enumerate(nodes):
            found = [each for each in known.get(node.host, ()) if not each.startswith(LOOPBACK)]
            if peer == rank or not found or set(found) & {*node.addresses, node.address}:
                continue
            bad = True
            words = f"{labels[rank]} takes {node.host} for {', '.join(found)}"
            advice = f"correct /etc/hosts or DNS there: {node.host} has {node.address}"
            yield JobFinding(Level.WARNING, "names", words, advice, (labels[rank],))
    if not bad:
        yield JobFinding(Level.OK, "names", "no name leads to another machine")


def check_interfaces(labels: Sequence[str], nodes: Sequence[Node]) -> Iterator[JobFinding]:
    """Yield by which interface the nodes meet, and who is made to use one that leads nowhere."""
    for label, node in zip(labels, nodes, strict=True):
        for variable, names in node.chosen.items():
            # One that does not exist is found by the node itself.
            if names and not node.interfaces.keys() & names and not _is_loopback(node.address):
                words = f"{label}: {', '.join(names)} has no address that other nodes know"
                advice = f"set it to {node.interface}, or unset it"
                yield JobFinding(Level.FAILURE, variable, words, advice, (label,))
    found: dict[str, list[str]] = {}
    for label, node in zip(labels, nodes, strict=True):
        found.setdefault(node.interface, []).append(label)
    each = [f"{name} on {', '.join(having)}" for name, having in found.items()]
    text = f"{next(iter(found))} on all nodes" if len(found) == 1 else "; ".join(each)
    yield JobFinding(Level.OK, "interface", text)


def _is_loopback(address: str) -> bool:
    return address.startswith(LOOPBACK)


def _other_way(
    labels: Sequence[str], nodes: Sequence[Node], to: int, deaf: Mapping[int, str], calls: Calls
) -> str:
    """Return that the other direction works, where it does: then no cable is broken."""
    back = {
        call.to
        for call in calls[to]
        if not call.fault and call.address in nodes[call.to].main_addresses
    }
    return f"; {labels[to]} reaches it" if len(deaf) == 1 and back & deaf.keys() else ""


def _advice(fault: str) -> str:
    if "refused" in fault or "timed out" in fault or "prohibited" in fault:
        return "a firewall in between drops or refuses it: nodes need all TCP ports of each other"
    return "check the interface (ip address), the route (ip route) and the firewall"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
