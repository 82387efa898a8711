"""What differs between the nodes of a job: versions, clocks, folders, speed. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from clusterrun.machine.health.finding import Level
from clusterrun.node_checks.findings import JobFinding, Node
from clusterrun.node_checks.speeds import AllReduce, Product, Products

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


def compare_versions(labels: Sequence[str], nodes: Sequence[Node]) -> Iterator[JobFinding]:
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
        yield JobFinding(level, f"version of {what}", found, advice, tuple(odd))
    if equal:
        yield JobFinding(Level.OK, "versions", ", ".join(equal))


def compare_clocks(labels: Sequence[str], offsets: Sequence[float]) -> Iterator[JobFinding]:
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
        yield JobFinding(Level.WARNING, "clock", words, advice, (label,))
    if not far:
        widest = max(offsets) - min(offsets)
        yield JobFinding(Level.OK, "clocks", f"within {1000 * widest:.0f} ms")


def compare_folder(labels: Sequence[str], folder: str, seen: Sequence[bool]) -> JobFinding:
    """Return which nodes see node 0's file in a folder."""
    what = f"shared folder ({folder})"
    blind = tuple(label for label, sees in zip(labels, seen, strict=True) if not sees)
    advice = "use a folder of a network file system for checkpoints and logs, or mount it there"
    if not blind:
        return JobFinding(Level.OK, what, "the same on all nodes")
    if not seen[0]:
        words = f"{labels[0]} can't write there: not checked"
        return JobFinding(Level.WARNING, what, words, advice, (labels[0],))
    some_share = sum(seen) > 1
    words = (
        f"{', '.join(blind)} {'has' if len(blind) == 1 else 'have'} another one than {labels[0]}"
    )
    level = Level.FAILURE if some_share else Level.WARNING
    return JobFinding(level, what, words, advice, blind)


def compare_products(labels: Sequence[str], by_node: Sequence[Products]) -> Iterator[JobFinding]:
    """Yield which CPUs and GPUs compute slower than the median of their kind, or not at all."""
    kinds: dict[str, list[tuple[str, Product]]] = {}
    for label, products in zip(labels, by_node, strict=True):
        if products.fault:
            words = f"fails on {label}: {products.fault}"
            advice = "type python -c 'import torch' and nvidia-smi there; or leave the node out"
            yield JobFinding(Level.FAILURE, "matrix product", words, advice, (label,))
        for product in products.found:
            kinds.setdefault(product.device.split()[0], []).append((label, product))
    for kind, known in kinds.items():
        usual = median(product.gigaflops for _, product in known)
        slow = [each for each in known if each[1].gigaflops < SLOW_PRODUCT * usual]
        for label, product in slow:
            words = f"{label} ({product.device}): {product.gigaflops:.0f} of {usual:.0f} Gflop/s"
            advice = "look for throttling, other programs, a power limit; or leave the node out"
            yield JobFinding(Level.WARNING, "matrix product", words, advice, (label,))
        if not slow:
            words = f"{kind}: {usual:.0f} Gflop/s (median of {len(known)})"
            yield JobFinding(Level.OK, "matrix product", words)


def compare_links(
    labels: Sequence[str], links: Mapping[tuple[int, int], AllReduce]
) -> Iterator[JobFinding]:
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
        yield JobFinding(Level.WARNING, what, words, advice, (labels[rank],))
    for link in slow:
        if not set(link) & set(slow_nodes):
            pair = tuple(labels[rank] for rank in link)
            words = f"{' and '.join(pair)}: {_rate(rates[link])}, the median is {_rate(usual)}"
            yield JobFinding(Level.WARNING, what, words, advice, pair)
    if not slow and not slow_nodes:
        yield JobFinding(Level.OK, what, f"{_rate(min(rates.values()))} or more")


def describe_all_reduce(backend: str, found: Sequence[AllReduce]) -> JobFinding:
    """Return a line for all nodes together, which have no median to be compared with."""
    sizes = [f"{_size(each.size)} {_rate(each.size / each.seconds)}" for each in found]
    return JobFinding(Level.OK, f"all_reduce of all nodes ({backend})", ", ".join(sizes))


def describe_failed_all_reduce(
    backend: str, labels: Sequence[str], faults: Sequence[str]
) -> JobFinding:
    """Return on which nodes it failed, and why; ``faults`` are torch's errors by node, "" for none."""
    names = tuple(label for label, fault in zip(labels, faults, strict=True) if fault)
    fault = next(filter(None, faults))
    # NCCL's own reason is in the last of several lines; the first is the same for many reasons.
    reason = (fault.partition("Last error:")[2].strip() or fault).partition("\n")[0]
    advice = "NCCL_DEBUG=INFO shows what NCCL chooses"
    if "interface" in reason or not any(kind in fault for kind in NOT_OF_THE_NETWORK):
        advice = f"set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface above; {advice}"
    words = f"fails on {', '.join(names)}: {reason}"
    return JobFinding(Level.FAILURE, f"all_reduce ({backend})", words, advice, names)


def _rate(bytes_per_second: float) -> str:
    if bytes_per_second >= 1e9:
        return f"{bytes_per_second / 1e9:.1f} GB/s"
    return f"{bytes_per_second / 1e6:.0f} MB/s"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
