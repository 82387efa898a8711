"""Names that belong to no cluster: what scripts export for torchrun and for torch."""

from msgspec.structs import replace

from clusterrun.job.clusters.found import Found, Launch, Variables, node
from clusterrun.job.declarations import Setting


def exported_nodes(v: Variables, _: Launch) -> Found | None:
    """Variables that scripts for torchrun export under the names of its flags: NNODES counts nodes."""
    if not v.has_all("NNODES", "MASTER_ADDR"):
        return None
    found = node(
        v.require("NNODES"), v.require("NODE_RANK"), nproc_per_node=v.gpus("NPROC_PER_NODE")
    )
    return replace(found, yields=True)


def exported_triple(v: Variables, launch: Launch) -> Found | None:
    """RANK, WORLD_SIZE and MASTER_ADDR, which count nodes on some platforms, processes on others.

    None of a cluster's if WORLD_SIZE is 1, or LOCAL_RANK places the process. Never taken for a job on
    one node: then each pod would train alone and report success. Right with one worker per node, or
    if ``--nnodes`` is WORLD_SIZE.
    """
    is_alone = v.get("WORLD_SIZE", "") in {"", "0", "1"}
    if is_alone or not v.get("MASTER_ADDR") or v.get("LOCAL_RANK"):
        return None
    nodes = v.require("WORLD_SIZE")
    counts_nodes = launch.nnodes is not None and launch.nnodes.value == nodes.value
    unclear = None if counts_nodes else Setting(_both_lines(launch), "RANK")
    return replace(node(nodes, v.require("RANK")), unclear=unclear, yields=True)


def exported_ranks(v: Variables, launch: Launch) -> Found | None:
    """Return a warning for a rank of several nodes or processes that has no address.

    No platform sets these alone, and shells often keep them: they do not place the process.
    """
    rank, count = ("RANK", "WORLD_SIZE") if v.get("RANK") else ("NODE_RANK", "NNODES")
    several = v.get(count, "")
    is_one_of_several = several.isdecimal() and int(several) > 1 and not v.get("LOCAL_RANK")
    if v.get("MASTER_ADDR") or launch.nnodes is not None or not is_one_of_several:
        return None
    warning = (
        f"{rank} is {v[rank]} and {count} {several}, but MASTER_ADDR is not set: this job runs alone;"
        f" for one job of all {several}, set MASTER_ADDR to the host of {rank} 0"
    )
    return Found(yields=True, warnings=(warning,))


def _both_lines(launch: Launch) -> str:
    by_hand = ("--nnodes", "$WORLD_SIZE", "--node-rank", "$RANK", "--nproc-per-node", "1")
    processes = launch.line.line(*by_hand)
    # The shell fills them in, so that the same line is right for every process.
    for variable in ("$WORLD_SIZE", "$RANK"):
        processes = processes.replace(f"'{variable}'", variable)
    return (
        f"if RANK counts nodes:\n  {launch.line.line('--cluster', 'pai-dlc')}\n"
        f"if it counts processes, each with one worker:\n  {processes}"
    )
