r"""What is read from the files of a machine: CPUs, NUMA nodes and GPUs, and a warning if there is one.

A file in ``machines/`` has sessions as tests/planning/nodes has them:

    # Why.
    $ online=0-7 nodes=0-3/4-7 node/node0/cpumap=f NAME=VALUE + nvidia 17,99 numa_node=1 + nvml 17
    gpus: 17@1 99@1
    warning: ...

The machine has the facts of ``MachineFacts``, or ``no-tree``; ``nodes=0:0-1/8:2-3`` gives ids. Files are
below cpu/, node/, pci/ or the root. After each ``+`` are devices on some buses, or what NVML or KFD lists.
``17@1`` is a GPU on bus 17 that is local to node 1.
"""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Gpu, Hints, Machine, PciGpu
from clusterrun.machine.tree import KernelAnswers, Tree
from msgspec import json

from tests.machine.nvml_answers import whole
from tests.machine_trees import (
    AMD,
    CPUS,
    HUAWEI,
    INTEL,
    NODES,
    NVIDIA,
    PCI,
    KfdNode,
    MachineFacts,
    on_bus,
    write_files,
    write_tree,
)
from tests.sessions import Session, sessions_of

TABLES = sorted((Path(__file__).parent / "machines").glob("*.txt"))
KINDS = {"nvidia": NVIDIA, "amd": AMD, "intel": INTEL, "huawei": HUAWEI}
FOLDERS = {"cpu": CPUS, "node": NODES, "pci": f"{PCI}/devices"}


@pytest.mark.parametrize("session", sessions_of(*TABLES, usual=""), ids=str)
def test_session(tmp_path: Path, session: Session) -> None:
    names = [it.partition(":")[0] for it in session.expected if not it.startswith("warning: ")]

    assert tuple(session_output(tmp_path, session.line, names)) == session.expected


def session_output(root: Path, line: str, names: Sequence[str]) -> Iterator[str]:
    """Yield what a session shows: facts with these names, and the warnings."""
    plus = (
        list(part) for is_plus, part in groupby(["", *shlex.split(line)], "+".__eq__) if not is_plus
    )
    words, *parts = plus
    given = dict(word.partition("=")[::2] for word in words[1:])
    environ = {name: value for name, value in given.items() if name.isupper()}
    files = {
        path_of(name): value.replace("\\n", "\n") for name, value in given.items() if "/" in name
    }
    facts = {name: value for name, value in given.items() if not name.isupper() and "/" not in name}
    affinity = CpuSet.parse(facts.pop("affinity")) if "affinity" in facts else None
    listed = [gpu for kind, *part in parts if kind == "nvml" for gpu in listed_by_nvml(*part)]
    if "no-tree" not in facts:
        write_tree(root, facts_of(facts, parts))
    write_files(root, files | ({"proc/driver/nvidia/version": ""} if listed else {}))
    answer = {"nvml": json.encode(listed).decode()} if listed else {}
    found = inspect(Tree(root, KernelAnswers(answer=answer)), environ, affinity, "")
    for name in names:
        yield f"{name}: {shown(found, name)}".rstrip()
    yield from (f"warning: {text}" for text in (found.visible_warning, found.accelerators) if text)


def path_of(name: str) -> str:
    folder, _, rest = name.partition("/")
    return f"{FOLDERS[folder]}/{rest}" if folder in FOLDERS else name


def facts_of(given: dict[str, str], parts: Iterable[Sequence[str]]) -> MachineFacts:
    facts: dict[str, Any] = dict(given)
    for name in facts.keys() & {"cores", "packages", "caches"}:
        facts[name] = facts[name].split("/") if facts[name] else ()
    for name in facts.keys() & {"nodes", "distances"}:
        facts[name] = by_node(facts[name])
    devices = [
        replace(device, **fields_of(keys, device))
        for kind, buses, *keys in parts
        if kind in KINDS
        for device in on_bus(KINDS[kind], *buses.split(","))
    ]
    kfd = [
        KfdNode(f"0000:{bus}:00.0", **fields_of(keys, KfdNode()))
        for kind, buses, *keys in parts
        if kind == "kfd"
        for bus in buses.split(",")
    ]
    return MachineFacts(**facts, devices=devices, kfd=[KfdNode(), KfdNode(), *kfd] if kfd else ())


def by_node(text: str) -> dict[int, str]:
    if text == "none":
        return {}
    rows = text.split("/")
    pairs = (row.split(":") if ":" in row else (str(at), row) for at, row in enumerate(rows))
    return {int(number): value for number, value in pairs}


def fields_of(keys: Iterable[str], usual: object) -> dict[str, Any]:
    """Return fields of a device by name; ``none`` is None, and numbers are numbers where they are usual."""
    found: dict[str, Any] = {}
    for key in keys:
        name, _, text = key.partition("=")
        if name == "links":
            found[name] = {
                int(to): int(weight) for to, weight in (it.split(":") for it in text.split(","))
            }
        elif name == "drm":
            found[name] = text.split(",")
        elif text == "none":
            found[name] = None
        else:
            is_number = isinstance(getattr(usual, name), int) or name == "minor"
            found[name] = int(text, 0) if is_number else text
    return found


def listed_by_nvml(buses: str, *keys: str) -> list[Gpu]:
    given = dict(key.split("=", 1) for key in keys)
    hints = Hints(given.pop("cpus", ""), given.pop("nodes", ""))
    return [
        whole(at, bdf=f"0000:{bus}:00.0", hints=hints, **given)
        for at, bus in enumerate(buses.split(","), int(given.pop("index", 0)))
    ]


def shown(found: Machine, name: str) -> str:
    match name:
        case "cores" | "packages" | "caches":
            return " ".join(map(str, getattr(found, name)))
        case "nodes":
            return " ".join(f"{node.id}:{node.cpus}" for node in found.nodes)
        case "memory":
            return " ".join(str(node.id) for node in found.nodes if node.has_memory)
        case "distances":
            return " ".join(
                ",".join(map(str, node.distances.values())) or "-" for node in found.nodes
            )
        case "gpus":
            return " ".join(map(placed, found.gpus))
        case "bus":
            return " ".join(map(placed, found.pci_gpus))
        case "visible":
            return " ".join(gpu.uuid if gpu.parent else str(gpu.index) for gpu in found.visible)
        case "visible_nodes":
            return " ".join(str(gpu.numa_node) for gpu in found.visible)
        case "visible_vendors":
            return " ".join({gpu.vendor: "" for gpu in found.visible})
        case "sources" | "models" | "uuids" | "vendors" | "indices":
            fields = {"sources": "node_source", "indices": "index"}
            return " | ".join(str(getattr(gpu, fields.get(name, name[:-1]))) for gpu in found.gpus)
    return str(getattr(found, name))


def placed(gpu: Gpu | PciGpu) -> str:
    bus = gpu.bdf.removeprefix("0000:").removesuffix(":00.0")
    return f"{bus}@{'?' if gpu.numa_node is None else gpu.numa_node}"


def test_this_machine_matches_the_kernel() -> None:
    """The same code reads the files of this machine."""
    ours = CpuSet(os.sched_getaffinity(0))

    found = inspect(Tree(Path("/")), {"CUDA_VISIBLE_DEVICES": ""}, ours, "here")

    assert (found.host, found.allowed) == ("here", ours)
    assert ours <= CpuSet.union_of(found.cores)
    assert found.visible == ()
