"""What is wrong with the nodes of a job together, from what each of them tells. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from msgspec import Struct

from clusterrun.bounds import Count, Line, Name, Port, as_line, counted
from clusterrun.clients.doctor.speeds import AllReduce, Product, Products
from clusterrun.clients.doctor.this_machine import LOOPBACK_PREFIXES, Finding, Level

FATAL_VERSIONS = ("clusterrun", "torch", "NCCL")
"""With two of these, ranks wait for each other for ever or read each other's bytes as another thing."""

OTHER_VERSIONS = ("Python", "driver")

MOST_SECONDS_APART = 1.0
"""Of clocks: beyond it, lines of logs and times of files mislead."""

NOT_OF_THE_NETWORK = ("ncclUnhandledCudaError", "ncclInvalidArgument", "ncclInvalidUsage")
"""NCCL's errors (torch, NCCLUtils.cpp) that GPUs or variables cause, unless it finds no interface."""

SLOW_PRODUCT = 0.7
SLOW_LINK = 0.4
"""Of the median of all nodes."""

FAR = 5.0
"""Times the median of all nodes."""
FEW_SECONDS = 0.002
"""A round trip that is shorter is not worth a word: most of it is the two processes' own."""


class NodeFacts(Struct, frozen=True):
    """What a worker tells of its node."""

    host: Name
    address: Name
    """Its address on the connection to node 0."""
    interfaces: Mapping[Name, tuple[Name, ...]]
    """The addresses that other nodes may know, by interface."""
    chosen: Mapping[Name, tuple[Name, ...]]
    """The interfaces that ``*_SOCKET_IFNAME`` name, by variable; () if there is none of that name."""
    port: Port
    greeting: Name
    """What answers at that port first."""
    versions: Mapping[Name, Name]
    """By what has them: ``torch``. What is not installed is left out."""
    gpus: Count
    """Those that torch can use."""

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(address for known in self.interfaces.values() for address in known)

    @property
    def main_addresses(self) -> tuple[str, ...]:
        """Those that a job uses: of the chosen interfaces, else that on the way to node 0."""
        names = dict.fromkeys(name for chosen in self.chosen.values() for name in chosen)
        chosen = [address for name in names for address in self.interfaces.get(name, ())]
        return tuple(chosen) or (self.address,)

    @property
    def interface(self) -> str:
        """The interface on the way to node 0."""
        names = (name for name, known in self.interfaces.items() if self.address in known)
        return next(names, "loopback")


def labels_of(nodes: Sequence[NodeFacts]) -> tuple[str, ...]:
    """Return a name for each node: its host's, with the node rank where two hosts have one name."""
    names = [node.host for node in nodes]
    return tuple(
        name if names.count(name) == 1 else f"{name}/{rank}" for rank, name in enumerate(names)
    )


class TriedAddress(Struct, frozen=True):
    """One address of another node, as seen from this one."""

    to: Count
    """A node rank."""
    address: Name
    fault: Line
    """``timed out``; "" if it answers."""
    seconds: float
    """The shortest round trip; 0.0 if it does not answer."""
    ahead: float = 0.0
    """By how many seconds the other node's clock is ahead of this one's."""


Calls = Sequence[Sequence[TriedAddress]]
"""What each node, by its rank, found of its peers."""


def merged(labels: Sequence[str], by_node: Sequence[Sequence[Finding]]) -> Iterator[Finding]:
    """Yield what each node found on its own: what is well once, the rest with its nodes.

    Their texts are printed as they are, apart from what a terminal would obey.
    """
    well: dict[str, list[Finding]] = {}
    bad: dict[Finding, list[str]] = {}
    for label, findings in zip(labels, by_node, strict=True):
        for finding in findings:
            what, text, advice = map(as_line, (finding.what, finding.found, finding.advice))
            line = Finding(finding.level, what, text, advice)
            if line.level is Level.OK:
                well.setdefault(line.what.partition(" (")[0], []).append(line)
            else:
                bad.setdefault(line, []).append(label)
    for what, found in well.items():
        different = {finding.found for finding in found}
        how_many = "all nodes" if len(found) >= len(labels) else counted(len(found), "node")
        one = f"{how_many}: {found[0].found}" if len(different) == 1 else how_many
        yield Finding(Level.OK, what, one)
    for finding, names in bad.items():
        text = f"{', '.join(names)}: {finding.found}"
        yield Finding(finding.level, finding.what, text, finding.advice, tuple(names))


def compare_versions(labels: Sequence[str], nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Yield whether all nodes have the same versions, and a line for each that differs."""
    equal = []
    for what in (*FATAL_VERSIONS, *OTHER_VERSIONS):
        having: dict[str, list[str]] = {}
        for label, node in zip(labels, nodes, strict=True):
            having.setdefault(node.versions.get(what, "none"), []).append(label)
        if len(having) == 1:
            equal += [f"{what} {version}" for version in having if version != "none"]
            continue
        commonest = max(having, key=lambda version: len(having[version]))
        odd = [label for version in having if version != commonest for label in having[version]]
        found = "; ".join(f"{version} on {', '.join(names)}" for version, names in having.items())
        level = Level.FAILURE if what in FATAL_VERSIONS else Level.WARNING
        advice = f"install one version on all nodes: {commonest} is on most"
        yield Finding(level, f"version of {what}", found, advice, tuple(odd))
    if equal:
        yield Finding(Level.OK, "versions", ", ".join(equal))


def clocks_ahead(calls: Calls) -> dict[int, float]:
    """Return by how many seconds each node's clock is ahead of node 0's, from each call's two clocks.

    The clock of a node that node 0 has not called is a sum over the calls in between, whose errors are
    milliseconds. A node that no call has reached is left out.
    """
    quickest: dict[int, dict[int, TriedAddress]] = {}
    for rank, made in enumerate(calls):
        for call in made:
            if call.fault:
                continue
            back = TriedAddress(rank, call.address, "", call.seconds, -call.ahead)
            for near, there in ((rank, call), (call.to, back)):
                known = quickest.setdefault(near, {})
                if there.to not in known or there.seconds < known[there.to].seconds:
                    known[there.to] = there
    ahead, reached = {0: 0.0}, [0]
    for near in reached:
        for far, call in quickest.get(near, {}).items():
            if far not in ahead:
                ahead[far] = ahead[near] + call.ahead
                reached.append(far)
    return ahead


def compare_clocks(labels: Sequence[str], offsets: Sequence[float]) -> Iterator[Finding]:
    """Yield whose clock differs; ``offsets`` are seconds ahead of node 0's."""
    # If node 0's is the odd one, all others seem to be.
    middle = median(offsets)
    far = [
        (label, offset - middle)
        for label, offset in zip(labels, offsets, strict=True)
        if abs(offset - middle) > MOST_SECONDS_APART
    ]
    for label, offset in far:
        way = "ahead of" if offset > 0 else "behind"
        words = f"{label} is {abs(offset):.1f} s {way} the others"
        advice = "start chronyd or ntpd there: times in logs and of files mislead"
        yield Finding(Level.WARNING, "clock", words, advice, (label,))
    if not far:
        widest = max(offsets) - min(offsets)
        yield Finding(Level.OK, "clocks", f"within {1000 * widest:.0f} ms")


def compare_folder(labels: Sequence[str], folder: str, seen: Sequence[bool]) -> Finding:
    """Return which nodes see node 0's file in a folder."""
    what = f"shared folder ({folder})"
    blind = tuple(label for label, sees in zip(labels, seen, strict=True) if not sees)
    advice = "use a folder of a network file system for checkpoints and logs, or mount it there"
    if not blind:
        return Finding(Level.OK, what, "the same on all nodes")
    if not seen[0]:
        words = f"{labels[0]} can't write there: not checked"
        return Finding(Level.WARNING, what, words, advice, (labels[0],))
    some_share = sum(seen) > 1
    words = (
        f"{', '.join(blind)} {'has' if len(blind) == 1 else 'have'} another one than {labels[0]}"
    )
    level = Level.FAILURE if some_share else Level.WARNING
    return Finding(level, what, words, advice, blind)


def compare_products(labels: Sequence[str], by_node: Sequence[Products]) -> Iterator[Finding]:
    """Yield which CPUs and GPUs compute slower than the median of their kind, or not at all."""
    kinds: dict[str, list[tuple[str, Product]]] = {}
    for label, products in zip(labels, by_node, strict=True):
        if products.fault:
            words = f"fails on {label}: {products.fault}"
            advice = "type python -c 'import torch' and nvidia-smi there; or leave the node out"
            yield Finding(Level.FAILURE, "matrix product", words, advice, (label,))
        for product in products.found:
            kinds.setdefault(product.device.split()[0], []).append((label, product))
    for kind, known in kinds.items():
        usual = median(product.gigaflops for _, product in known)
        slow = [each for each in known if each[1].gigaflops < SLOW_PRODUCT * usual]
        for label, product in slow:
            words = f"{label} ({product.device}): {product.gigaflops:.0f} of {usual:.0f} Gflop/s"
            advice = "look for throttling, other programs, a power limit; or leave the node out"
            yield Finding(Level.WARNING, "matrix product", words, advice, (label,))
        if not slow:
            words = f"{kind}: {usual:.0f} Gflop/s (median of {len(known)})"
            yield Finding(Level.OK, "matrix product", words)


def compare_links(
    labels: Sequence[str], links: Mapping[tuple[int, int], AllReduce]
) -> Iterator[Finding]:
    """Yield which links of the ring add up slower than the median, and the node that they share.

    A node is as fast as its fastest link; a link is slow if it is slower than its nodes.
    """
    rates = {link: found.size / found.seconds for link, found in links.items()}
    nodes = sorted({rank for link in rates for rank in link})
    best = {rank: max(rate for link, rate in rates.items() if rank in link) for rank in nodes}
    usual = median(best.values())
    slow_nodes = [rank for rank in nodes if len(nodes) > 2 and best[rank] < SLOW_LINK * usual]
    slow = [link for link, rate in rates.items() if rate < SLOW_LINK * usual]
    what = "all_reduce of pairs"
    advice = "check cable, switch port, speed (ethtool) and errors (ip -s link)"
    for rank in slow_nodes:
        words = f"{labels[rank]}: {_rate(best[rank])} at best, the median is {_rate(usual)}"
        yield Finding(Level.WARNING, what, words, advice, (labels[rank],))
    for link in slow:
        if not set(link) & set(slow_nodes):
            pair = tuple(labels[rank] for rank in link)
            words = f"{' and '.join(pair)}: {_rate(rates[link])}, the median is {_rate(usual)}"
            yield Finding(Level.WARNING, what, words, advice, pair)
    if not slow and not slow_nodes:
        yield Finding(Level.OK, what, f"{_rate(min(rates.values()))} or more")


def keeps_from_adding_up(finding: Finding) -> bool:
    """Return whether the nodes can't add up: without torch, with a broken GPU, or without a way."""
    is_about_them = finding.what.startswith(("ports", "version of", "host name", "matrix product"))
    return finding.level is Level.FAILURE and (is_about_them or "IFNAME" in finding.what)


def backend_of(nodes: Sequence[NodeFacts]) -> str:
    """Return what the nodes add up by."""
    return "nccl" if all(node.gpus and "NCCL" in node.versions for node in nodes) else "gloo"


def describe_all_reduce(backend: str, found: Sequence[AllReduce]) -> Finding:
    """Return a line for all nodes together, which have no median to be compared with."""
    sizes = [f"{_size(each.size)} {_rate(each.size / each.seconds)}" for each in found]
    return Finding(Level.OK, f"all_reduce of all nodes ({backend})", ", ".join(sizes))


def describe_failed_all_reduce(
    backend: str, labels: Sequence[str], faults: Sequence[str]
) -> Finding:
    """Return on which nodes it failed, and why; ``faults`` are torch's errors by node, "" for none."""
    names = tuple(label for label, fault in zip(labels, faults, strict=True) if fault)
    fault = next(filter(None, faults))
    # NCCL's own reason is in the last of several lines; the first is the same for many reasons.
    reason = (fault.partition("Last error:")[2].strip() or fault).partition("\n")[0]
    advice = "NCCL_DEBUG=INFO shows what NCCL chooses"
    if "interface" in reason or not any(kind in fault for kind in NOT_OF_THE_NETWORK):
        advice = f"set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface above; {advice}"
    words = f"fails on {', '.join(names)}: {reason}"
    return Finding(Level.FAILURE, f"all_reduce ({backend})", words, advice, names)


# Which nodes reach each other, by which addresses and names.


def check_calls(
    labels: Sequence[str], nodes: Sequence[NodeFacts], calls: Calls
) -> Iterator[Finding]:
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
            yield Finding(Level.FAILURE, "ports", words, _advice(fault), (labels[to], *callers))
        else:
            use = f"NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to {nodes[to].interface}"
            advice = f"libraries may choose this address: set {use}, or repair it"
            yield Finding(Level.WARNING, "addresses", words, advice, (labels[to], *callers))
    if asked and not bad:
        total = sum(map(len, calls))
        yield Finding(Level.OK, "ports", f"{total} of {total} connections, in both directions")


def check_round_trips(labels: Sequence[str], calls: Calls) -> Iterator[Finding]:
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
        yield Finding(Level.WARNING, "round trip", words, advice, (labels[rank],))
    if not far:
        yield Finding(Level.OK, "round trip", f"{_milliseconds(usual)} (median)")


def check_names(
    labels: Sequence[str],
    nodes: Sequence[NodeFacts],
    resolved: Sequence[Mapping[str, Sequence[str]]],
) -> Iterator[Finding]:
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
            found = [
                each for each in known.get(node.host, ()) if not each.startswith(LOOPBACK_PREFIXES)
            ]
            if peer == rank or not found or set(found) & {*node.addresses, node.address}:
                continue
            bad = True
            words = f"{labels[rank]} takes {node.host} for {', '.join(found)}"
            advice = f"correct /etc/hosts or DNS there: {node.host} has {node.address}"
            yield Finding(Level.WARNING, "names", words, advice, (labels[rank],))
    if not bad:
        yield Finding(Level.OK, "names", "no name leads to another machine")


def check_interfaces(labels: Sequence[str], nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Yield by which interface the nodes meet, and who is made to use one that leads nowhere."""
    for label, node in zip(labels, nodes, strict=True):
        for variable, names in node.chosen.items():
            # One that does not exist is found by the node itself.
            if names and not node.interfaces.keys() & names and not _is_loopback(node.address):
                words = f"{label}: {', '.join(names)} has no address that other nodes know"
                advice = f"set it to {node.interface}, or unset it"
                yield Finding(Level.FAILURE, variable, words, advice, (label,))
    found: dict[str, list[str]] = {}
    for label, node in zip(labels, nodes, strict=True):
        found.setdefault(node.interface, []).append(label)
    each = [f"{name} on {', '.join(having)}" for name, having in found.items()]
    text = f"{next(iter(found))} on all nodes" if len(found) == 1 else "; ".join(each)
    yield Finding(Level.OK, "interface", text)


def _is_loopback(address: str) -> bool:
    return address.startswith(LOOPBACK_PREFIXES)


def _other_way(
    labels: Sequence[str],
    nodes: Sequence[NodeFacts],
    to: int,
    deaf: Mapping[int, str],
    calls: Calls,
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


def _rate(bytes_per_second: float) -> str:
    if bytes_per_second >= 1e9:
        return f"{bytes_per_second / 1e9:.1f} GB/s"
    return f"{bytes_per_second / 1e6:.0f} MB/s"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
