"""What a worker tells the others of its node."""

import socket
from collections.abc import Mapping

from clusterrun.machine.health.network import BY_PREFIX, EXACT, LOOPBACK, usable_interfaces
from clusterrun.node_checks.findings import Node
from clusterrun.node_checks.reach import Door
from clusterrun.node_checks.this_machine import own_addresses, version_of, versions

LINK_LOCAL = ("169.254.", "fe80:")


def describe_this_node(address: str, door: Door, environ: Mapping[str, str]) -> Node:
    """Return it; ``address`` is this node's on the way to node 0. Imports torch, if there is one."""
    nccl, gpus = _torch_facts() if version_of("torch") else ("", 0)
    return Node(
        host=socket.gethostname(),
        local_rank=int(environ.get("LOCAL_RANK", "0")),
        address=address,
        interfaces=_known_to_others(),
        chosen=_chosen(environ),
        port=door.port,
        greeting=door.greeting,
        versions=versions() | ({"NCCL": nccl} if nccl else {}),
        gpus=gpus,
    )


def _torch_facts() -> tuple[str, int]:
    """Return the version of NCCL, "" if torch has none for GPUs here, and the number of GPUs."""
    try:
        import torch
    except (ImportError, OSError, RuntimeError):
        # The table has its version, and the matrix product what is wrong with it.
        return "", 0
    if not torch.cuda.is_available():
        return "", 0
    from torch.cuda import nccl

    return ".".join(map(str, nccl.version())), torch.cuda.device_count()


def _known_to_others() -> dict[str, tuple[str, ...]]:
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = {
        name: tuple(each for each in known if not each.startswith((*LOOPBACK, *LINK_LOCAL)))
        for name, known in own_addresses().items()
        if name in up
    }
    return {name: known for name, known in found.items() if known}


def _chosen(environ: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the interfaces that libraries are made to use; NCCL takes the first that matches."""
    names, chosen = tuple(own_addresses()), {}
    for variable in (*BY_PREFIX, *EXACT):
        by_prefix = variable in BY_PREFIX
        if value := environ.get(variable, ""):
            found = usable_interfaces(value, names, by_prefix=by_prefix)
            chosen[variable] = tuple(found[:1] if by_prefix else found)
    return chosen
