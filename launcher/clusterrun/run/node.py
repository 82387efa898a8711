"""This node's part in the job: the job's options, the machine, the workers."""

import os
from collections.abc import Mapping
from typing import NamedTuple, Self

from msgspec import Struct

from clusterrun.cpuset import CpuSet, own_cpus
from clusterrun.job.job import MAIN, Job
from clusterrun.job.resolve import Resolved
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Machine
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.planning.node_plan import plan_node
from clusterrun.planning.node_warnings import strict_error
from clusterrun.planning.plan import NodePlan, WorkerSlot, World, assumed_world
from clusterrun.planning.variables import user_environment
from clusterrun.planning.worker_slots import worker_slots


class MachineSource(NamedTuple):
    """The files and values from which a machine is read: this machine or a captured one."""

    tree: Tree
    allowed: CpuSet | None
    """The CPUs that the process may use; None: those that the tree lists, or else all."""
    variables: Mapping[str, str]
    """The process's environment."""

    @classmethod
    def here(cls, environ: Mapping[str, str]) -> Self:
        """Return this machine as this process sees it."""
        return cls(Tree(ROOT), own_cpus(), environ)

    def machine(self, environment: Mapping[str, str]) -> Machine:
        """Return the whole machine, including what a job in this environment may not use."""
        return inspect(self.tree, environment, self.allowed, os.uname().nodename)


class LocalNode(Struct, frozen=True):
    """A node of a job, before the nodes have joined."""

    job: Job
    unset: tuple[str, ...]
    """Variables that workers must not inherit."""
    variables: Mapping[str, str]
    """The environment of this process."""
    environment: Mapping[str, str]
    """The user's environment for workers, without the variables that clusterrun sets."""
    machine: Machine
    """As far as the job may use it."""
    slots: tuple[WorkerSlot, ...]
    """Of this job's workers, and of other tasks and jobs on the machine."""

    @classmethod
    def of(cls, resolved: Resolved, source: MachineSource) -> Self:
        """Return the node whose machine is read from ``source``.

        Raises:
            UsageError: the job's options name a GPU, a node or a CPU that is not on the machine, or
                more workers than can run there.

        """
        job, unset = resolved.job, resolved.unset
        environment = user_environment(job, source.variables, unset)
        machine = source.machine(environment)
        if job.placing.numa_map or job.workers.devices or job.numa_node is not None:
            # Few jobs have one.
            from clusterrun.planning.job_machine import machine_for

            machine = machine_for(job, machine)
        slots = worker_slots(job, machine)
        return cls(job, unset, source.variables, environment, machine, slots)

    @property
    def workers(self) -> int:
        """The number of the main program's workers on this node."""
        return sum(1 for slot in self.slots if slot.is_ours and slot.program == MAIN)

    @property
    def size(self) -> int:
        """The number of workers on this node, including those of services."""
        return sum(1 for slot in self.slots if slot.is_ours)

    def plan(self, world: World, error_files: str | None = None) -> NodePlan:
        """Return the plan of an attempt in ``world``.

        ``error_files`` is the folder for TORCHELASTIC_ERROR_FILE; None: the variable is not set.

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
            slots=self.slots,
        )

    def assumed_plan(self) -> NodePlan:
        """Return the plan for the world that is assumed before the nodes have joined.

        Raises:
            MachineError: a worker can't be bound as asked, and the job is strict about it.
            UsageError: this node has not the program of a service.

        """
        if not self.job.services:
            return self.plan(assumed_world(self.job, self.workers))
        # Few jobs have services.
        from clusterrun.job.services import check_program
        from clusterrun.planning.services import assumed_programs

        programs = assumed_programs(self.job, self.machine)
        planned = self.plan(assumed_world(self.job, self.workers, programs))
        for worker in planned.workers:
            if worker.service is not None:
                variables = {**self.environment, **worker.env}
                check_program(worker.service, variables.get("PATH", os.defpath))
        return planned

    def check_binding(self, planned: NodePlan) -> None:
        """With ``--numa-strict``, try the binding of each worker.

        Raises:
            MachineError: a worker can't be bound as asked.

        """
        if self.job.placing.numa_strict:
            from clusterrun.workers.exec_worker import binding_failures

            troubles = binding_failures(planned)
            if troubles:
                raise strict_error(self.job, planned.host, troubles)
