"""Strategies whose processes are bound, and the environment by which their nodes find each other."""

import os
import sys
from typing import Any

from clusterrun.errors import UsageError
from clusterrun.job.job import Job
from clusterrun.job.resolve import resolve
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import this_process
from clusterrun.lightning.binding import bind_this_process

try:
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
except ImportError:
    # The same under its older name.
    from lightning_fabric.plugins.environments.lightning import (  # type: ignore[assignment]
        LightningEnvironment,
    )
    from pytorch_lightning.strategies import (  # type: ignore[assignment]
        DDPStrategy,
        StrategyRegistry,
    )


class ClusterrunEnvironment(LightningEnvironment):
    """Lightning's environment plugin for every platform that clusterrun knows.

    In a process that has LOCAL_RANK already, it is Lightning's own: that process was started by
    Lightning or by a launcher, with all variables.
    """

    def __init__(self) -> None:
        """Read the platform's variables.

        Raises:
            UsageError: they contradict each other.

        """
        super().__init__()
        self._job = None if "LOCAL_RANK" in os.environ else _job()

    @property
    def creates_processes_externally(self) -> bool:
        """Whether the scheduler starts a task for each GPU."""
        if self._job is None:
            return bool(super().creates_processes_externally)
        return self._job.tasks is not None

    @property
    def main_address(self) -> str:
        """The address of the first node."""
        if self._job is None or self._job.meeting.master_addr is None:
            return str(super().main_address)
        return self._job.meeting.master_addr

    @property
    def main_port(self) -> int:
        """A port of the first node, the same on all nodes."""
        if self._job is not None and self._job.meeting.master_port is not None:
            return self._job.meeting.master_port
        if self._job is not None and self._job.port_candidates:
            return self._job.port_candidates[0]
        return int(super().main_port)

    def node_rank(self) -> int:
        """Return the rank of this node."""
        if self._job is None:
            return int(super().node_rank())
        tasks = self._job.tasks
        return (self._job.workers.node_rank or 0) if tasks is None else tasks.node_rank

    def local_rank(self) -> int:
        """Return the rank of this process on its node."""
        tasks = None if self._job is None else self._job.tasks
        return int(super().local_rank()) if tasks is None else tasks.local_rank

    def check(self, num_nodes: int, num_devices: int) -> None:
        """Check what the trainer was given against the platform.

        Raises:
            UsageError: the numbers differ.

        """
        if self._job is None:
            return
        tasks, origin = self._job.tasks, self._job.origin("nnodes")
        if (found := self._job.nnodes if tasks is None else tasks.nodes) != num_nodes:
            raise UsageError(
                f"Trainer(num_nodes={num_nodes}), but {origin} says {found}",
                f"type Trainer(num_nodes={found})",
            )
        if tasks is not None and tasks.local_size != num_devices:
            raise UsageError(
                f"Trainer(devices={num_devices}), but {self._job.origin('tasks')} has started"
                f" {tasks.local_size} tasks on this node",
                f"type Trainer(devices={tasks.local_size})",
            )


class BindNumaStrategy(DDPStrategy):
    """DDP whose processes are bound to the CPUs near their GPUs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what ``DDPStrategy`` takes."""
        super().__init__(*args, **kwargs)
        if self.cluster_environment is None:
            self.cluster_environment = ClusterrunEnvironment()

    def setup_environment(self) -> None:
        """Bind this process, then join the process group."""
        environment = self.cluster_environment
        if isinstance(environment, ClusterrunEnvironment):
            environment.check(self.num_nodes, self.num_processes)
        # A launcher has bound its workers.
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            gpus = [each.index for each in self.parallel_devices or () if each.type == "cuda"]
            remark = bind_this_process(self.local_rank, self.num_processes, gpus)
            if remark:
                sys.stderr.write(f"clusterrun: local rank {self.local_rank}: {remark}\n")
        super().setup_environment()


def _job() -> Job:
    return resolve(CommandLine(), os.environ, this_process("clusterrun"), for_topo=True).job


StrategyRegistry.register(
    "ddp_bind_numa", BindNumaStrategy, description="DDP, each process on the CPUs near its GPU"
)
StrategyRegistry.register(
    "ddp_spawn_bind_numa",
    BindNumaStrategy,
    description="The same, with processes that are spawned by multiprocessing",
    start_method="spawn",
)
