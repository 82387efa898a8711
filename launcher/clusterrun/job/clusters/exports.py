"""Variables that scripts export for torchrun and torch, and that belong to no cluster."""

from msgspec.structs import replace

from clusterrun.job.clusters.found import DetectionContext, Found, Variables, node
from clusterrun.job.declarations import Setting


def exported_nodes(v: Variables, _: DetectionContext) -> Found | None:
    """Variables with the names of torchrun's flags, as scripts export them: NNODES counts nodes."""
    if not v.has_all("NNODES", "MASTER_ADDR"):
        return None
    found = node(
        v.require("NNODES"), v.require("NODE_RANK"), nproc_per_node=v.gpus("NPROC_PER_NODE")
    )
    return replace(found, overridable=True)


def exported_triple(v: Variables, context: DetectionContext) -> Found | None:
    """RANK, WORLD_SIZE and MASTER_ADDR: they count nodes on some platforms, processes on others.

    Returns None if WORLD_SIZE is 1 or LOCAL_RANK is set. The variables are never ignored otherwise:
    each pod would train alone and report success. They are unambiguous with one worker per node, or
    if ``--nnodes`` equals WORLD_SIZE.
    """
    is_alone = v.get("WORLD_SIZE", "") in {"", "0", "1"}
    if is_alone or not v.get("MASTER_ADDR") or v.get("LOCAL_RANK"):
        return None
    nodes = v.require("WORLD_SIZE")
    counts_nodes = context.nnodes is not None and context.nnodes.value == nodes.value
    unclear = None if counts_nodes else Setting(_both_lines(context), "RANK")
    return replace(node(nodes, v.require("RANK")), unclear=unclear, overridable=True)


def exported_ranks(v: Variables, context: DetectionContext) -> Found | None:
    """RANK and WORLD_SIZE, or NODE_RANK and NNODES, without an address: only a warning.

    No platform sets them without an address, and they are often left over in a shell.
    """
    rank, count = ("RANK", "WORLD_SIZE") if v.get("RANK") else ("NODE_RANK", "NNODES")
    several = v.get(count, "")
    is_one_of_several = several.isdecimal() and int(several) > 1 and not v.get("LOCAL_RANK")
    if v.get("MASTER_ADDR") or context.nnodes is not None or not is_one_of_several:
        return None
    warning = (
        f"{rank} is {v[rank]} and {count} {several}, but MASTER_ADDR is not set: this job runs alone;"
        f" for one job of all {several}, set MASTER_ADDR to the host of {rank} 0"
    )
    return Found(overridable=True, warnings=(warning,))


def _both_lines(context: DetectionContext) -> str:
    by_hand = ("--nnodes", "$WORLD_SIZE", "--node-rank", "$RANK", "--nproc-per-node", "1")
    processes = context.line.quoted(*by_hand)
    # The variables stay unquoted, so the same line is right for every process.
    for variable in ("$WORLD_SIZE", "$RANK"):
        processes = processes.replace(f"'{variable}'", variable)
    return (
        f"if RANK counts nodes:\n  {context.line.quoted('--cluster', 'pai-dlc')}\n"
        f"if it counts processes, each with one worker:\n  {processes}"
    )
