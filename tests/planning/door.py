"""All that the tests of this folder import of the inner modules of the product."""

from typing import NamedTuple

from clusterrun.bounds import GlobalRank as GlobalRank
from clusterrun.bounds import LocalRank as LocalRank
from clusterrun.bounds import NodeRank as NodeRank
from clusterrun.cpuset import CpuSet as CpuSet
from clusterrun.errors import MachineError as MachineError
from clusterrun.errors import RendezvousError as RendezvousError
from clusterrun.errors import UsageError as UsageError
from clusterrun.job.declaring import Fact as Fact
from clusterrun.job.job import MAIN as MAIN
from clusterrun.job.job import Job as Job
from clusterrun.job.job import ProgramKind as ProgramKind
from clusterrun.job.job import TaskLayout as TaskLayout
from clusterrun.job.job import WorkerProgram as WorkerProgram
from clusterrun.job.options import NumaBinding as NumaBinding
from clusterrun.job.options import NumaMemory as NumaMemory
from clusterrun.job.options import StartMethod as StartMethod
from clusterrun.job.values import MappedGpu as MappedGpu
from clusterrun.job.values import WorkerCount as WorkerCount
from clusterrun.job.values import variable_name as variable_name
from clusterrun.machine.inspect import inspect as inspect
from clusterrun.machine.machine import Gpu as Gpu
from clusterrun.machine.machine import Machine as Machine
from clusterrun.machine.machine import PciGpu as PciGpu
from clusterrun.machine.tree import KernelAnswers as KernelAnswers
from clusterrun.machine.tree import Tree as Tree
from clusterrun.planning.binding import place as place_workers
from clusterrun.planning.binding import threads_per_worker as threads_per_worker
from clusterrun.planning.job_machine import local_size as local_size
from clusterrun.planning.job_machine import machine_for as machine_for
from clusterrun.planning.job_machine import with_map as with_map
from clusterrun.planning.node_plan import RUN_PATH as RUN_PATH
from clusterrun.planning.placement import BindingRequest
from clusterrun.planning.placement import Placement as Placement
from clusterrun.planning.plan import MemoryPolicy as MemoryPolicy
from clusterrun.planning.plan import NodePlan as NodePlan
from clusterrun.planning.plan import NumberedProgram as NumberedProgram
from clusterrun.planning.plan import World as World
from clusterrun.planning.plan import assumed_world as assumed_world
from clusterrun.planning.preparation import preparation_of as preparation_of
from clusterrun.planning.variables import environment_before as environment_before
from clusterrun.planning.variables import paddle_variables as paddle_variables
from clusterrun.run.preview import lone_worker_world as lone_worker_world


class BindingOptions(NamedTuple):
    """The options of a job for binding."""

    mode: NumaBinding
    memory: NumaMemory = NumaMemory.NONE
    gpus_per_worker: int | None = None


def place(options: BindingOptions, here: Machine, workers: int) -> tuple[Placement, ...]:
    return place_workers(here, BindingRequest(workers, *options))
