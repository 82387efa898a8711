"""What is planned before anything starts, here or on a machine that was captured."""

from collections.abc import Mapping

from msgspec.structs import replace

from clusterrun.cpuset import CpuSet
from clusterrun.job.declarations import Setting
from clusterrun.job.job import Job
from clusterrun.job.resolve import Resolved, resolve
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import this_process
from clusterrun.machine.machine import Machine
from clusterrun.planning.plan import NodePlan, World, assumed_world
from clusterrun.planning.variables import user_environment
from clusterrun.ports import MasterPort
from clusterrun.run.node import LocalNode, MachineSource


def preview(resolved: Resolved, environ: Mapping[str, str]) -> tuple[Machine, NodePlan]:
    """Return the machine, and what ``launch`` would start on it; chooses no port.

    Raises:
        UsageError: the job can't be run there as described, or no machine was captured there.

    """
    node = LocalNode.of(resolved, _source(resolved, environ))
    return node.machine, node.plan(assumed_world(node.job, node.workers))


def described(options: Mapping[str, str], environ: Mapping[str, str]) -> Resolved:
    """Return the job of a program that starts its own processes.

    Args:
        options: their texts by name, which are their origins too.
        environ: the program's environment.

    Raises:
        UsageError: something is impossible.

    """
    line = CommandLine({name: (Setting(text, name),) for name, text in options.items()})
    return resolve(line, environ, this_process("clusterrun"), for_topo=True)


def plan_lone_worker(resolved: Resolved, environ: Mapping[str, str]) -> NodePlan:
    """Return the plan of the one worker that this process is to become (``--exec``).

    Raises:
        LauncherError: it would not be one worker, or rank 0's port is in use.

    """
    node = LocalNode.of(resolved, MachineSource.here(environ))
    return node.plan_ahead(lone_worker_world(node.job))


def lone_worker_world(job: Job) -> World:
    """Return the world of a process that becomes its one worker, without any rendezvous.

    Raises:
        RendezvousError: rank 0's port is in use on this machine, which is rank 0's.

    """
    world = assumed_world(job, 1)
    if job.agents == 1 and world.master_port is None:
        free = MasterPort()
        free.release()
        return replace(world, master_port=free.number)
    port = world.master_port or job.port_candidates[0]
    if world.first_rank == 0:
        name = "master_port" if world.master_port else "port_candidates"
        MasterPort(Setting(port, job.origin(name))).release()
    return replace(world, master_port=port)


def capture(resolved: Resolved, environ: Mapping[str, str]) -> bytes:
    """Return the text of a file with all that is read of the machine, whatever a plan makes of it.

    Raises:
        UsageError: no machine was captured where the job says.

    """
    from clusterrun.machine.capture import encode_capture

    source = _source(resolved, environ)
    environment = user_environment(resolved.job, source.variables, resolved.unset)
    machine = source.machine(environment)
    return encode_capture(source.tree, environment, CpuSet(machine.allowed | machine.isolated))


def _source(resolved: Resolved, environ: Mapping[str, str]) -> MachineSource:
    """Return what to read the job's machine from.

    Raises:
        UsageError: --machine-root is given, and is not a captured machine.

    """
    root = resolved.machine_root
    if root.value is None:
        return MachineSource.here(environ)
    # Few previews read a captured machine.
    from clusterrun.machine.capture import open_capture

    return MachineSource(*open_capture(root.value, root.origin, environ))
