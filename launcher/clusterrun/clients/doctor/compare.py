"""Compare the nodes of a job by the facts and measurements of each. This module does no I/O."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from msgspec import Struct

from clusterrun.bounds import Count, Line, Name, Port, as_line, counted
from clusterrun.clients.doctor.this_machine import (
    LOOPBACK_PREFIXES,
    Finding,
    Level,
    failure,
    ok,
    warning,
)
from clusterrun.clients.doctor.torch_program import NetworkSpeeds, TorchFacts

FATAL_VERSIONS = ("clusterrun", "torch", "NCCL")
"""If nodes have different versions of these, ranks hang or misread each other's data."""
OTHER_VERSIONS = ("Python", "driver")

MAX_SECONDS_APART = 1.0
"""Of clocks. If they differ by more, timestamps of logs and files are misleading."""

MIN_PRODUCT_RATIO = 0.7
MIN_LINK_RATIO = 0.4
"""Relative to the median of all nodes."""

NOT_NETWORK_ERRORS = ("ncclUnhandledCudaError", "ncclInvalidArgument", "ncclInvalidUsage")
"""NCCL errors (torch, NCCLUtils.cpp) caused by GPUs or variables, unless NCCL finds no interface."""


class NodeFacts(Struct, frozen=True):
    """A description of a node by itself."""

    node: Count
    """The node rank. Several tasks of a scheduler on one node have the same."""
    host: Name
    address: Name
    """The source address for traffic to node 0."""
    interfaces: Mapping[Name, tuple[Name, ...]]
    """The addresses that other nodes may reach, by interface."""
    chosen: Mapping[Name, tuple[Name, ...]]
    """The existing interfaces that a ``*_SOCKET_IFNAME`` variable selects, by variable."""
    port: Port
    """A port on which the node listens."""
    versions: Mapping[Name, Name]
    """By package, such as ``torch``, without packages that are not installed."""
    torch: TorchFacts
    files: tuple[Line, ...] = ()
    """Paths of the files that node 0 has written to folders that nodes may share."""

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(address for known in self.interfaces.values() for address in known)

    @property
    def main_addresses(self) -> tuple[str, ...]:
        """The addresses that a job uses: of chosen interfaces, or else the one towards node 0."""
        names = dict.fromkeys(name for chosen in self.chosen.values() for name in chosen)
        chosen = [address for name in names for address in self.interfaces.get(name, ())]
        return tuple(chosen) or (self.address,)

    @property
    def interface(self) -> str:
        """The interface that is used to reach node 0."""
        names = (name for name, known in self.interfaces.items() if self.address in known)
        return next(names, "loopback")


class ConnectionAttempt(Struct, frozen=True):
    """An attempt to connect to an address of another node."""

    to: Count
    """The index of the other node among those that take part."""
    address: Name
    fault: Line
    """Why it failed, such as ``timed out``, or ""."""


class NodeFindings(Struct, frozen=True):
    """The results of a node's own checks."""

    findings: tuple[Finding, ...] = ()
    attempts: tuple[ConnectionAttempt, ...] = ()
    resolved: Mapping[Name, tuple[Name, ...]] = {}
    """The addresses that host names of other nodes resolve to."""
    sees: tuple[bool, ...] = ()
    """Whether the node finds each of ``NodeFacts.files``."""


class NodeMeasurements(Struct, frozen=True):
    """The measurements of a node."""

    ahead: float
    """The difference of its clock from node 0's, in seconds."""
    speeds: NetworkSpeeds


def first_rank_of_each_node(
    facts: Sequence[NodeFacts | None],
) -> tuple[list[int], list[NodeFacts]]:
    """Return the first rank of each node, and its facts; a node may have several tasks of a scheduler."""
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
    """Compare facts and findings.

    Args:
        facts: by rank; None for a rank that has not answered.
        nodes: the facts of the first rank of each node.
        found: the findings of each node; None for a node that has not answered.

    """
    labels = node_labels(nodes)
    yield from (_no_answer(f"rank {rank}") for rank, each in enumerate(facts) if each is None)
    yield from (_no_answer(label) for label, each in zip(labels, found, strict=True) if not each)
    yield from compare_versions(labels, nodes)
    by_node = [each or NodeFindings() for each in found]
    yield from merge_findings(labels, [each.findings for each in by_node])
    yield from check_interfaces(labels, nodes)
    yield from check_connections(labels, nodes, [each.attempts for each in by_node])
    yield from check_names(labels, nodes, [each.resolved for each in by_node])
    answered = [(label, each) for label, each in zip(labels, found, strict=True) if each]
    for number, file in enumerate(nodes[0].files):
        seen = [each.sees[number] for _, each in answered]
        folder = file.rpartition("/")[0] or "/"
        yield compare_folder([label for label, _ in answered], folder, seen)
    yield from compare_products(labels, [node.torch for node in nodes])


def compare_measured(
    labels: Sequence[str], backend: str, found: Sequence[NodeMeasurements | None]
) -> Iterator[Finding]:
    """Compare clocks and links; ``found`` has None for a node that has not answered."""
    yield from (_no_answer(label) for label, each in zip(labels, found, strict=True) if not each)
    answered = [(label, each) for label, each in zip(labels, found, strict=True) if each]
    names, measured = [label for label, _ in answered], [each.speeds for _, each in answered]
    yield from compare_clocks(names, [each.ahead for _, each in answered])
    rates = {(one, two): rate for each in measured for one, two, rate in each.links}
    if any(each.fault for each in measured):
        yield describe_failed_all_reduce(backend, names, [each.fault for each in measured])
    elif rates:
        yield from compare_links(labels, rates)
        speeds = [
            f"{_size_text(each.size)} {_rate_text(each.size / each.seconds)}"
            for each in measured[0].sums
        ]
        yield ok(f"all_reduce of all nodes ({backend})", ", ".join(speeds))


def _no_answer(label: str) -> Finding:
    advice = "see its own output; a file system or a driver may be hanging on that node"
    return failure("answers", f"{label}: no answer; see its own output", advice, label)


def node_labels(nodes: Sequence[NodeFacts]) -> tuple[str, ...]:
    """Return the host name of each node, with the node rank if several hosts have the same name."""
    names = [node.host for node in nodes]
    return tuple(
        name if names.count(name) == 1 else f"{name}/{node.node}"
        for name, node in zip(names, nodes, strict=True)
    )


def merge_findings(
    labels: Sequence[str], by_node: Sequence[Sequence[Finding]]
) -> Iterator[Finding]:
    """Merge the findings of nodes about themselves: OK findings by subject, equal problems to one.

    Control characters in texts of other nodes are removed.
    """
    good: dict[str, list[Finding]] = {}
    bad: dict[Finding, list[str]] = {}
    for label, findings in zip(labels, by_node, strict=True):
        for finding in findings:
            what, text, advice = map(as_line, (finding.what, finding.found, finding.advice))
            line = Finding(finding.level, what, text, advice)
            if line.level is Level.OK:
                good.setdefault(line.what.partition(" (")[0], []).append(line)
            else:
                bad.setdefault(line, []).append(label)
    for what, found in good.items():
        is_same = len({finding.found for finding in found}) == 1
        how_many = "all nodes" if len(found) >= len(labels) else counted(len(found), "node")
        yield ok(what, f"{how_many}: {found[0].found}" if is_same else how_many)
    for finding, names in bad.items():
        text = f"{', '.join(names)}: {finding.found}"
        yield Finding(finding.level, finding.what, text, finding.advice, tuple(names))


def compare_versions(labels: Sequence[str], nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Check that all nodes have the same version of each package."""
    equal = []
    for what in (*FATAL_VERSIONS, *OTHER_VERSIONS):
        having = _group_by_value([node.versions.get(what, "none") for node in nodes], labels)
        if len(having) == 1:
            equal += [f"{what} {version}" for version in having if version != "none"]
            continue
        commonest = max(having, key=lambda version: len(having[version]))
        odd = [label for version in having if version != commonest for label in having[version]]
        found = "; ".join(f"{version} on {', '.join(names)}" for version, names in having.items())
        report = failure if what in FATAL_VERSIONS else warning
        advice = f"install one version on all nodes: {commonest} is on most"
        yield report(f"version of {what}", found, advice, *odd)
    if equal:
        yield ok("versions", ", ".join(equal))


def compare_clocks(labels: Sequence[str], ahead: Sequence[float]) -> list[Finding]:
    """Name the nodes whose clock differs from the median.

    ``ahead`` has the differences from node 0's clock, in seconds. Node 0's may be the one that differs.
    """
    usual, problems = median(ahead), []
    for label, seconds in zip(labels, ahead, strict=True):
        offset = seconds - usual
        if abs(offset) > MAX_SECONDS_APART:
            direction = "ahead of" if offset > 0 else "behind"
            found = f"{label} is {abs(offset):.1f} s {direction} the others"
            advice = "start chronyd or ntpd there: log and file timestamps are misleading"
            problems.append(warning("clock", found, advice, label))
    return problems or [ok("clocks", f"within {MAX_SECONDS_APART:g} s")]


def compare_folder(labels: Sequence[str], folder: str, seen: Sequence[bool]) -> Finding:
    """Check whether each node sees the file that node 0 has written to a folder."""
    what = f"shared folder ({folder})"
    without = [label for label, sees in zip(labels, seen, strict=True) if not sees]
    advice = (
        "use a folder on a network file system for checkpoints and logs, or mount this folder on"
        " all nodes"
    )
    if not without:
        return ok(what, "the same on all nodes")
    if not seen[0]:
        return warning(what, f"{labels[0]} can't write there: not checked", advice, labels[0])
    verb = "has" if len(without) == 1 else "have"
    # Every node may have its own folder, but a folder that only some nodes share is a mistake.
    report = failure if sum(seen) > 1 else warning
    found = f"{', '.join(without)} {verb} a different one from {labels[0]}"
    return report(what, found, advice, *without)


def compare_products(labels: Sequence[str], by_node: Sequence[TorchFacts]) -> Iterator[Finding]:
    """Name the CPUs and GPUs that fail, or are slower than the median of their kind."""
    kinds: dict[str, list[tuple[str, str, float]]] = {}
    what = "matrix product"
    for label, torch in zip(labels, by_node, strict=True):
        if torch.fault:
            advice = "run nvidia-smi on that node, or exclude it from the job"
            yield failure(what, f"fails on {label}: {torch.fault}", advice, label)
        for product in torch.products:
            known = kinds.setdefault(product.device.split()[0], [])
            known.append((label, product.device, product.gigaflops))
    for kind, known in kinds.items():
        usual = median(speed for *_, speed in known)
        advice = "look for throttling, other programs, a power limit; or exclude the node"
        problems = [
            warning(what, f"{label} ({device}): {speed:.0f} of {usual:.0f} Gflop/s", advice, label)
            for label, device, speed in known
            if speed < MIN_PRODUCT_RATIO * usual
        ]
        yield from problems or [ok(what, f"{kind}: {usual:.0f} Gflop/s (median of {len(known)})")]


def compare_links(labels: Sequence[str], rates: Mapping[tuple[int, int], float]) -> list[Finding]:
    """Name the nodes, or else the links of the ring, that are slower than the median.

    A node counts as fast as its fastest link. The links of a slow node are not named. ``rates`` has bytes
    per second, by the indices of two nodes.
    """
    nodes = sorted({rank for link in rates for rank in link})
    best = {rank: max(rate for link, rate in rates.items() if rank in link) for rank in nodes}
    usual = median(best.values())
    slow_nodes = [rank for rank in nodes if len(nodes) > 2 and best[rank] < MIN_LINK_RATIO * usual]
    slow = [link for link, rate in rates.items() if rate < MIN_LINK_RATIO * usual]
    advice = "check cable, switch port, speed (ethtool) and errors (ip -s link)"
    problems = []
    for rank in slow_nodes:
        found = (
            f"{labels[rank]}: {_rate_text(best[rank])} at best, the median is {_rate_text(usual)}"
        )
        problems.append(warning("links", found, advice, labels[rank]))
    for link in slow:
        if not set(link) & set(slow_nodes):
            pair = [labels[rank] for rank in link]
            found = f"{' and '.join(pair)}: {_rate_text(rates[link])}, the median is {_rate_text(usual)}"
            problems.append(warning("links", found, advice, *pair))
    return problems or [ok("links", f"{_rate_text(min(rates.values()))} or more")]


def backend_of(nodes: Sequence[NodeFacts]) -> str:
    return "nccl" if all(node.torch.gpus and node.torch.nccl for node in nodes) else "gloo"


def describe_failed_all_reduce(
    backend: str, labels: Sequence[str], faults: Sequence[str]
) -> Finding:
    """Say on which nodes all_reduce failed, and why; ``faults`` has torch's error of each node, or ""."""
    names = [label for label, fault in zip(labels, faults, strict=True) if fault]
    fault = next(filter(None, faults))
    # NCCL's reason is in the last of several lines; the first line is the same for many reasons.
    reason = (fault.partition("Last error:")[2].strip() or fault).partition("\n")[0]
    advice = "NCCL_DEBUG=INFO shows what NCCL chooses"
    if "interface" in reason or not any(kind in fault for kind in NOT_NETWORK_ERRORS):
        advice = f"set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface above; {advice}"
    return failure(
        f"all_reduce ({backend})", f"fails on {', '.join(names)}: {reason}", advice, *names
    )


def check_connections(
    labels: Sequence[str],
    nodes: Sequence[NodeFacts],
    attempts: Sequence[Sequence[ConnectionAttempt]],
) -> list[Finding]:
    """Name the addresses that can't be reached, and from which nodes; ``attempts`` are by node."""
    tried: dict[tuple[int, str], dict[int, str]] = {}
    for rank, of_node in enumerate(attempts):
        for attempt in of_node:
            tried.setdefault((attempt.to, attempt.address), {})[rank] = attempt.fault
    problems = []
    for (to, address), faults in tried.items():
        failed = {rank: fault for rank, fault in faults.items() if fault}
        if not failed:
            continue
        callers = [labels[rank] for rank in failed]
        by_none = len(failed) == len(faults) and len(faults) > 1
        who = "no node reaches" if by_none else f"{', '.join(callers)} can't reach"
        found = f"{who} {labels[to]} at {address}: {next(iter(failed.values()))}"
        if address in nodes[to].main_addresses:
            back = {attempt.to for attempt in attempts[to] if not attempt.fault}
            if len(failed) == 1 and back & failed.keys():
                # This rules out a broken cable.
                found += f"; {labels[to]} reaches it"
            advice = "open all TCP ports between nodes, and check the route (ip route)"
            problems.append(failure("ports", found, advice, labels[to], *callers))
        else:
            use = f"NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to {nodes[to].interface}"
            advice = f"libraries may choose this address: set {use}, or make it reachable"
            problems.append(warning("addresses", found, advice, labels[to], *callers))
    if problems or not tried:
        return problems
    total = sum(map(len, attempts))
    return [ok("ports", f"{total} of {total} connections, in both directions")]


def check_names(
    labels: Sequence[str],
    nodes: Sequence[NodeFacts],
    resolved: Sequence[Mapping[str, Sequence[str]]],
) -> list[Finding]:
    """Name the nodes on which the host name of another node resolves to a different machine.

    ``resolved`` has for each node the addresses of host names. A name without addresses is not a problem,
    because jobs can use addresses.
    """
    problems = []
    for label, known in zip(labels, resolved, strict=True):
        for peer, node in zip(labels, nodes, strict=True):
            found = [
                each for each in known.get(node.host, ()) if not each.startswith(LOOPBACK_PREFIXES)
            ]
            if peer == label or not found or set(found) & {*node.addresses, node.address}:
                continue
            text = f"{label} resolves {node.host} to {', '.join(found)}"
            advice = f"correct /etc/hosts or DNS there: {node.host} has {node.address}"
            problems.append(warning("names", text, advice, label))
    return problems or [ok("names", "no host name resolves to the wrong machine")]


def check_interfaces(labels: Sequence[str], nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Name the interface by which nodes connect, and variables that select an unreachable one."""
    for label, node in zip(labels, nodes, strict=True):
        is_local = node.address.startswith(LOOPBACK_PREFIXES)
        for variable, names in node.chosen.items():
            # A node itself reports an interface that does not exist.
            if names and not node.interfaces.keys() & names and not is_local:
                text = f"{label}: {', '.join(names)} has no address that other nodes know"
                yield failure(variable, text, f"set it to {node.interface}, or unset it", label)
    found = _group_by_value([node.interface for node in nodes], labels)
    each = [f"{name} on {', '.join(having)}" for name, having in found.items()]
    yield ok(
        "interface", f"{next(iter(found))} on all nodes" if len(found) == 1 else "; ".join(each)
    )


def _group_by_value(values: Sequence[str], labels: Sequence[str]) -> dict[str, list[str]]:
    having: dict[str, list[str]] = {}
    for value, label in zip(values, labels, strict=True):
        having.setdefault(value, []).append(label)
    return having


def _rate_text(bytes_per_second: float) -> str:
    if bytes_per_second >= 1e9:
        return f"{bytes_per_second / 1e9:.1f} GB/s"
    return f"{bytes_per_second / 1e6:.0f} MB/s"


def _size_text(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
