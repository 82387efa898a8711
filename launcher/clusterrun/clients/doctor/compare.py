"""What is wrong with the nodes of a job together, from what each of them has found. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from msgspec import Struct

from clusterrun.bounds import Count, Line, Name, Port, as_line, counted
from clusterrun.clients.doctor.this_machine import LOOPBACK_PREFIXES, Finding, Level
from clusterrun.clients.doctor.torch_program import AllReduce, NetworkSpeeds, TorchFacts

FATAL_VERSIONS = ("clusterrun", "torch", "NCCL")
"""With two of these, ranks wait for each other for ever or misread each other's bytes."""
OTHER_VERSIONS = ("Python", "driver")

MAX_SECONDS_APART = 1.0
"""Of clocks: beyond it, lines of logs and times of files mislead."""

SLOW_PRODUCT = 0.7
SLOW_LINK = 0.4
"""Of the median of all nodes."""

NOT_OF_THE_NETWORK = ("ncclUnhandledCudaError", "ncclInvalidArgument", "ncclInvalidUsage")
"""NCCL's errors (torch, NCCLUtils.cpp) that GPUs or variables cause, unless it finds no interface."""


class NodeFacts(Struct, frozen=True):
    """A node, as its program describes it."""

    node: Count
    """Its rank; under a scheduler, several tasks of one node have the same."""
    host: Name
    address: Name
    """Its address on the way to node 0."""
    interfaces: Mapping[Name, tuple[Name, ...]]
    """The addresses that other nodes may know, by interface."""
    chosen: Mapping[Name, tuple[Name, ...]]
    """The interfaces that ``*_SOCKET_IFNAME`` name, by variable; () if there is none of that name."""
    port: Port
    """Connections to it are accepted by the kernel."""
    versions: Mapping[Name, Name]
    """By what has them: ``torch``. What is not installed is left out."""
    torch: TorchFacts
    files: tuple[Line, ...] = ()
    """Node 0's, in the folders that all nodes may share."""

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


class ConnectionAttempt(Struct, frozen=True):
    """A connection to one address of another node, as tried from this one."""

    to: Count
    """A node's number among those that take part."""
    address: Name
    fault: Line
    """``timed out``; "" if it was made."""


Calls = Sequence[Sequence[ConnectionAttempt]]
"""What each node has tried."""


class NodeFindings(Struct, frozen=True):
    """What a node finds on its own, and of the others."""

    findings: tuple[Finding, ...] = ()
    calls: tuple[ConnectionAttempt, ...] = ()
    resolved: Mapping[Name, tuple[Name, ...]] = {}
    """What the hosts' names lead to."""
    sees: tuple[bool, ...] = ()
    """Whether each of node 0's files is there."""


class Measured(Struct, frozen=True):
    """What a node has measured."""

    ahead: float
    """Seconds of its clock, compared with node 0's."""
    exchanged: NetworkSpeeds


def first_rank_of_each_node(
    facts: Sequence[NodeFacts | None],
) -> tuple[list[int], list[NodeFacts]]:
    """Return the first rank of each node, and its facts: a scheduler may start several tasks there."""
    first: dict[int, tuple[int, NodeFacts]] = {}
    for rank, each in enumerate(facts):
        if each is not None:
            first.setdefault(each.node, (rank, each))
    return [rank for rank, _ in first.values()], [each for _, each in first.values()]


def compare_nodes(
    facts: Sequence[NodeFacts | None],
    nodes: Sequence[NodeFacts],
    found: Sequence[NodeFindings | None],
) -> Iterator[Finding]:
    """Yield what the nodes' facts and findings say; of some nodes there may be no findings."""
    labels = labels_of(nodes)
    yield from (no_answer(f"rank {rank}") for rank, each in enumerate(facts) if each is None)
    yield from (no_answer(label) for label, each in zip(labels, found, strict=True) if not each)
    yield from compare_versions(labels, nodes)
    by_node = [each or NodeFindings() for each in found]
    yield from merged(labels, [each.findings for each in by_node])
    yield from check_interfaces(labels, nodes)
    yield from check_calls(labels, nodes, [each.calls for each in by_node])
    yield from check_names(labels, nodes, [each.resolved for each in by_node])
    there = [(label, each) for label, each in zip(labels, found, strict=True) if each]
    for number, file in enumerate(nodes[0].files):
        seen = [each.sees[number] for _, each in there]
        folder = file.rpartition("/")[0] or "/"
        yield compare_folder([label for label, _ in there], folder, seen)
    yield from compare_products(labels, [node.torch for node in nodes])


def compare_measured(
    labels: Sequence[str], backend: str, found: Sequence[Measured | None]
) -> Iterator[Finding]:
    """Yield what clocks and links say; of some nodes nothing may be known."""
    yield from (no_answer(label) for label, each in zip(labels, found, strict=True) if not each)
    there = [(label, each) for label, each in zip(labels, found, strict=True) if each]
    names, measured = [label for label, _ in there], [each.exchanged for _, each in there]
    yield from compare_clocks(names, [each.ahead for _, each in there])
    rates = {(one, two): rate for each in measured for one, two, rate in each.links}
    if any(each.fault for each in measured):
        yield describe_failed_all_reduce(backend, names, [each.fault for each in measured])
    elif rates:
        yield from compare_links(labels, rates)
        yield describe_all_reduce(backend, measured[0].sums)


def no_answer(label: str) -> Finding:
    advice = "see what it has printed itself; a file system or a driver may hang there"
    words = f"{label}: no answer; see its own output"
    return Finding(Level.FAILURE, "answers", words, advice, (label,))


def labels_of(nodes: Sequence[NodeFacts]) -> tuple[str, ...]:
    """Return a name for each node: its host's, with the node rank where two hosts have one name."""
    names = [node.host for node in nodes]
    return tuple(
        name if names.count(name) == 1 else f"{name}/{node.node}"
        for name, node in zip(names, nodes, strict=True)
    )


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
        having = _nodes_by([node.versions.get(what, "none") for node in nodes], labels)
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


def compare_clocks(labels: Sequence[str], ahead: Sequence[float]) -> Iterator[Finding]:
    """Yield whose clock differs; ``ahead`` are seconds, compared with node 0's clock."""
    # If node 0's is the odd one, all others seem to be.
    middle, is_well = median(ahead), True
    for label, seconds in zip(labels, ahead, strict=True):
        offset = seconds - middle
        if abs(offset) > MAX_SECONDS_APART:
            is_well = False
            way = "ahead of" if offset > 0 else "behind"
            words = f"{label} is {abs(offset):.1f} s {way} the others"
            advice = "start chronyd or ntpd there: log and file timestamps are misleading"
            yield Finding(Level.WARNING, "clock", words, advice, (label,))
    if is_well:
        yield Finding(Level.OK, "clocks", f"within {MAX_SECONDS_APART:g} s")


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
    verb = "has" if len(blind) == 1 else "have"
    # Each may have its own; one that only some share is a mistake.
    level = Level.FAILURE if sum(seen) > 1 else Level.WARNING
    return Finding(
        level, what, f"{', '.join(blind)} {verb} a different one from {labels[0]}", advice, blind
    )


def compare_products(labels: Sequence[str], by_node: Sequence[TorchFacts]) -> Iterator[Finding]:
    """Yield which CPUs and GPUs compute slower than the median of their kind, or not at all."""
    kinds: dict[str, list[tuple[str, str, float]]] = {}
    what = "matrix product"
    for label, torch in zip(labels, by_node, strict=True):
        if torch.fault:
            advice = "type nvidia-smi there; or leave the node out"
            yield Finding(Level.FAILURE, what, f"fails on {label}: {torch.fault}", advice, (label,))
        for product in torch.products:
            known = kinds.setdefault(product.device.split()[0], [])
            known.append((label, product.device, product.gigaflops))
    for kind, known in kinds.items():
        usual, is_well = median(speed for *_, speed in known), True
        for label, device, speed in known:
            if speed < SLOW_PRODUCT * usual:
                is_well = False
                words = f"{label} ({device}): {speed:.0f} of {usual:.0f} Gflop/s"
                advice = "look for throttling, other programs, a power limit; or leave the node out"
                yield Finding(Level.WARNING, what, words, advice, (label,))
        if is_well:
            words = f"{kind}: {usual:.0f} Gflop/s (median of {len(known)})"
            yield Finding(Level.OK, what, words)


def compare_links(
    labels: Sequence[str], rates: Mapping[tuple[int, int], float]
) -> Iterator[Finding]:
    """Yield which links of the ring are slower than the median, and the node that they share.

    A node is as fast as its fastest link; a link is slow if it is slower than its nodes. ``rates`` are
    bytes per second, by two nodes.
    """
    nodes = sorted({rank for link in rates for rank in link})
    best = {rank: max(rate for link, rate in rates.items() if rank in link) for rank in nodes}
    usual = median(best.values())
    slow_nodes = [rank for rank in nodes if len(nodes) > 2 and best[rank] < SLOW_LINK * usual]
    slow = [link for link, rate in rates.items() if rate < SLOW_LINK * usual]
    what = "links"
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


def backend_of(nodes: Sequence[NodeFacts]) -> str:
    """Return what the nodes add up by."""
    return "nccl" if all(node.torch.gpus and node.torch.nccl for node in nodes) else "gloo"


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


def check_calls(
    labels: Sequence[str], nodes: Sequence[NodeFacts], calls: Calls
) -> Iterator[Finding]:
    """Yield which addresses can't be reached, and from which nodes."""
    tried: dict[tuple[int, str], dict[int, str]] = {}
    for rank, made in enumerate(calls):
        for call in made:
            tried.setdefault((call.to, call.address), {})[rank] = call.fault
    bad = False
    for (to, address), faults in tried.items():
        failed = {rank: fault for rank, fault in faults.items() if fault}
        if not failed:
            continue
        bad = True
        callers = tuple(labels[rank] for rank in failed)
        by_none = len(failed) == len(faults) and len(faults) > 1
        who = "no node reaches" if by_none else f"{', '.join(callers)} can't reach"
        fault = next(iter(failed.values()))
        words = f"{who} {labels[to]} at {address}: {fault}"
        if address in nodes[to].main_addresses:
            back = {call.to for call in calls[to] if not call.fault}
            if len(failed) == 1 and back & failed.keys():
                # Then no cable is broken.
                words += f"; {labels[to]} reaches it"
            advice = "open all TCP ports between nodes, and check the route (ip route)"
            yield Finding(Level.FAILURE, "ports", words, advice, (labels[to], *callers))
        else:
            use = f"NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to {nodes[to].interface}"
            advice = f"libraries may choose this address: set {use}, or repair it"
            yield Finding(Level.WARNING, "addresses", words, advice, (labels[to], *callers))
    if tried and not bad:
        total = sum(map(len, calls))
        yield Finding(Level.OK, "ports", f"{total} of {total} connections, in both directions")


def check_names(
    labels: Sequence[str],
    nodes: Sequence[NodeFacts],
    resolved: Sequence[Mapping[str, Sequence[str]]],
) -> Iterator[Finding]:
    """Yield which nodes take another node's name for another machine.

    ``resolved`` has for each node the addresses of each host's name; none if it is unknown there,
    which does not matter to jobs that use addresses.
    """
    bad = False
    for label, known in zip(labels, resolved, strict=True):
        for peer, node in zip(labels, nodes, strict=True):
            found = [
                each for each in known.get(node.host, ()) if not each.startswith(LOOPBACK_PREFIXES)
            ]
            if peer == label or not found or set(found) & {*node.addresses, node.address}:
                continue
            bad = True
            words = f"{label} resolves {node.host} to {', '.join(found)}"
            advice = f"correct /etc/hosts or DNS there: {node.host} has {node.address}"
            yield Finding(Level.WARNING, "names", words, advice, (label,))
    if not bad:
        yield Finding(Level.OK, "names", "no host name resolves to the wrong machine")


def check_interfaces(labels: Sequence[str], nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Yield by which interface the nodes meet, and who is made to use one that leads nowhere."""
    for label, node in zip(labels, nodes, strict=True):
        for variable, names in node.chosen.items():
            # One that does not exist is found by the node itself.
            is_local = node.address.startswith(LOOPBACK_PREFIXES)
            if names and not node.interfaces.keys() & names and not is_local:
                words = f"{label}: {', '.join(names)} has no address that other nodes know"
                advice = f"set it to {node.interface}, or unset it"
                yield Finding(Level.FAILURE, variable, words, advice, (label,))
    found = _nodes_by([node.interface for node in nodes], labels)
    each = [f"{name} on {', '.join(having)}" for name, having in found.items()]
    text = f"{next(iter(found))} on all nodes" if len(found) == 1 else "; ".join(each)
    yield Finding(Level.OK, "interface", text)


def _nodes_by(values: Sequence[str], labels: Sequence[str]) -> dict[str, list[str]]:
    having: dict[str, list[str]] = {}
    for value, label in zip(values, labels, strict=True):
        having.setdefault(value, []).append(label)
    return having


def _rate(bytes_per_second: float) -> str:
    if bytes_per_second >= 1e9:
        return f"{bytes_per_second / 1e9:.1f} GB/s"
    return f"{bytes_per_second / 1e6:.0f} MB/s"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
