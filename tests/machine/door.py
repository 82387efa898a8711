"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.cpuset import CpuSet as CpuSet
from clusterrun.errors import UsageError as UsageError
from clusterrun.machine.capture import MAX_SIZE as MAX_SIZE
from clusterrun.machine.capture import open_captured as open_captured
from clusterrun.machine.capture import written_capture as written_capture
from clusterrun.machine.cgroup import GroupMemory as GroupMemory
from clusterrun.machine.cgroup import Hierarchy as Hierarchy
from clusterrun.machine.cgroup import OomCounters as OomCounters
from clusterrun.machine.cgroup import cpu_quota as cpu_quota
from clusterrun.machine.cgroup import hierarchy_of as hierarchy_of
from clusterrun.machine.cgroup import oom_kills_between as oom_kills_between
from clusterrun.machine.cpus import Processors as Processors
from clusterrun.machine.cpus import read_nodes as read_nodes
from clusterrun.machine.cpus import read_processors as read_processors
from clusterrun.machine.gpus import nvml
from clusterrun.machine.gpus import pci as pci
from clusterrun.machine.gpus.gpus import HUNG as HUNG
from clusterrun.machine.gpus.locality import Locator as Locator
from clusterrun.machine.gpus.nvidia import parse as parse
from clusterrun.machine.gpus.nvml import SECONDS_BETWEEN_QUESTIONS as SECONDS_BETWEEN_QUESTIONS
from clusterrun.machine.gpus.nvml import SECONDS_UNTIL_HUNG as SECONDS_UNTIL_HUNG
from clusterrun.machine.gpus.nvml import SECONDS_VALID as SECONDS_VALID
from clusterrun.machine.gpus.nvml import GpuUsage as GpuUsage
from clusterrun.machine.gpus.nvml import Wrong as Wrong
from clusterrun.machine.gpus.nvml import broken_gpus as broken_gpus
from clusterrun.machine.gpus.nvml import gpus_in as gpus_in
from clusterrun.machine.gpus.nvml import slow_gpus as slow_gpus
from clusterrun.machine.gpus.pci import in_bus_order as in_bus_order
from clusterrun.machine.gpus.pci import normalised as normalised
from clusterrun.machine.inspect import inspect as inspect
from clusterrun.machine.machine import Gpu as Gpu
from clusterrun.machine.machine import GpuState as GpuState
from clusterrun.machine.machine import Hints as Hints
from clusterrun.machine.machine import Machine as Machine
from clusterrun.machine.machine import PciGpu as PciGpu
from clusterrun.machine.process_usage import ProcessUsage as ProcessUsage
from clusterrun.machine.process_usage import Units as Units
from clusterrun.machine.process_usage import usage_of as usage_of
from clusterrun.machine.process_usage import why_silent as why_silent
from clusterrun.machine.tree import KernelAnswers as KernelAnswers
from clusterrun.machine.tree import Tree as Tree
from clusterrun.machine.tree import cpus_of as cpus_of
from clusterrun.machine.tree import number_of as number_of

ask_nvml = nvml.ask
