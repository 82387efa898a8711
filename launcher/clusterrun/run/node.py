"""The job as far as one node is concerned: what is asked for, its machine, how many workers."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Self

from msgspec import Struct

from clusterrun.cpuset import CpuSet, own_cpus
from clusterrun.job.job import Job
from clusterrun.job.resolve import Resolved
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Machine
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.planning.job_machine import local_size, machine_for
from clusterrun.planning.node_plan import plan_node
from clusterrun.planning.plan import NodePlan, World
from clusterrun.planning.remarks import strict_error
from clusterrun.planning.variables import environment_before

if TYPE_CHECKING:
    from clusterrun.planning.services import Share


class MachineSource(NamedTuple):
    """What a machine is read from: this machine, or a captured one as its own process saw it."""

    tree: Tree
    allowed: CpuSet | None
    """The CPUs that the process may use; None: as the tree has it, else all."""
    variables: Mapping[str, str]
    """The process's environment."""

    @classmethod
    def here(cls, environ: Mapping[str, str]) -> Self:
        """Return this machine, as this process sees it."""
        return cls(Tree(ROOT), own_cpus(), environ)

    def machine(self, environment: Mapping[str, str]) -> Machine:
        """Return the whole machine, whatever a job in this environment may use of it."""
        return inspect(self.tree, environment, self.allowed, os.uname().nodename)


class LocalNode(Struct, frozen=True):
    """One node of a job, before the nodes have joined."""

    job: Job
    unset: tuple[str, ...]
    """Variables that its workers must not inherit."""
    variables: Mapping[str, str]
    """The environment of this process."""
    environment: Mapping[str, str]
    """That of the workers as the user made it, without what clusterrun sets."""
    machine: Machine
    """As the job may use it: all that planning and reports look at."""
    workers: int
    """The number of the main program's on this node."""
    shares: "tuple[Share, ...]" = ()
    """What services have on it."""

    @classmethod
    def of(cls, resolved: Resolved, source: MachineSource) -> Self:
        """Return the node whose machine is read from ``source``.

        Raises:
            UsageError: the job's options name a GPU, a node or a CPU that is not on the machine, or
                more workers than can run there.

        """
        job, unset = resolved.job, resolved.unset
        if job.services:
            # Few jobs have some.
            from clusterrun.planning.services import OF_A_WORLD, with_old_values

            job = with_old_values(job, source.variables)
            # A platform may set them for the whole machine.
            unset = tuple(sorted({*unset, *(OF_A_WORLD & source.variables.keys())}))
        environment = environment_before(job, source.variables, unset)
        machine = machine_for(job, source.machine(environment))
        shares: tuple[Share, ...] = ()
        if job.services:
            # Few jobs have some.
            from clusterrun.job.services import check_program
            from clusterrun.planning.services import main_workers, shares_on

            shares = shares_on(job, machine)
            for share in shares:
                check_program(share.service, environment.get("PATH", os.defpath))
            workers = main_workers(job, machine, shares)
        else:
            workers = local_size(job, machine)
        return cls(job, unset, source.variables, environment, machine, workers, shares)

    @property
    def size(self) -> int:
        """The number of workers on this node, those of services included."""
        return self.workers + sum(share.workers for share in self.shares)

    def plan(self, world: World, error_files: str | None = None) -> NodePlan:
        """Return the plan of an attempt in ``world``.

        ``error_files``: the folder of the workers' TORCHELASTIC_ERROR_FILE; None: they get none.

        Raises:
            MachineError: a worker can't be bound as asked, and the job is strict about it.

        """
        return plan_node(
            self.job,
            self.machine,
            world,
            unset=self.unset,
            error_files=error_files,
            before=self.environment,
            shares=self.shares,
        )

    def plan_ahead(self, world: World) -> NodePlan:
        """Return what is known before any worker starts; a strict job's binding is tried out.

        Raises:
            MachineError: a worker can't be bound as asked, and the job is strict about it.

        """
        planned = self.plan(world)
        if self.job.placing.numa_strict:
            from clusterrun.workers.in_this_process import binding_failures

            troubles = binding_failures(planned)
            if troubles:
                raise strict_error(self.job, planned.host, troubles)
        return planned
