"""Plans that are made without starting a job, for this machine or a captured one."""

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
    """Return the machine and the plan of ``launch`` for it; no port is chosen.

    Raises:
        UsageError: the job can't run on the machine, or ``--machine-root`` is not a captured machine.

    """
    node = LocalNode.of(resolved, _source(resolved, environ))
    return node.machine, node.assumed_plan()


def described(options: Mapping[str, str], environ: Mapping[str, str]) -> Resolved:
    """Resolve the job of a program that starts its own processes.

    Args:
        options: the text of each option by its name, which is also its origin.
        environ: the program's environment.

    Raises:
        UsageError: an option is invalid.

    """
    line = CommandLine({name: (Setting(text, name),) for name, text in options.items()})
    return resolve(line, environ, this_process("clusterrun"), for_topo=True)


def plan_lone_worker(resolved: Resolved, environ: Mapping[str, str]) -> NodePlan:
    """Return the plan of the only worker, which this process becomes (``--exec``).

    Raises:
        LauncherError: there is more than one worker, or rank 0's port is in use.

    """
    node = LocalNode.of(resolved, MachineSource.here(environ))
    plan = node.plan(lone_worker_world(node.job))
    node.check_binding(plan)
    return plan


def lone_worker_world(job: Job) -> World:
    """Return the world of a process that becomes its only worker, without a rendezvous.

    Raises:
        RendezvousError: this is rank 0's machine, and rank 0's port is in use.

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
    """Return the contents of a capture file: all files that describe the machine.

    Raises:
        UsageError: ``--machine-root`` is not a captured machine.

    """
    from clusterrun.machine.capture import encode_capture

    source = _source(resolved, environ)
    environment = user_environment(resolved.job, source.variables, resolved.unset)
    machine = source.machine(environment)
    return encode_capture(source.tree, environment, CpuSet(machine.allowed | machine.isolated))


def _source(resolved: Resolved, environ: Mapping[str, str]) -> MachineSource:
    """Return the source of the job's machine.

    Raises:
        UsageError: ``--machine-root`` is not a captured machine.

    """
    root = resolved.machine_root
    if root.value is None:
        return MachineSource.here(environ)
    # Few previews read a captured machine.
    from clusterrun.machine.capture import open_capture

    return MachineSource(*open_capture(root.value, root.origin, environ))
