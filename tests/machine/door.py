"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.domain.cpuset import CpuSet as CpuSet
from clusterrun.domain.facts import Fact as Fact
from clusterrun.domain.machine import Gpu as Gpu
from clusterrun.domain.machine import Machine as Machine
from clusterrun.domain.machine import PciGpu as PciGpu
from clusterrun.domain.ranks import GlobalRank as GlobalRank
from clusterrun.errors import UsageError as UsageError
from clusterrun.machine.capture import MAX_SIZE as MAX_SIZE
from clusterrun.machine.capture import open_captured as open_captured
from clusterrun.machine.capture import written_capture as written_capture
from clusterrun.machine.cgroup import GroupMemory as GroupMemory
from clusterrun.machine.cgroup import Hierarchy as Hierarchy
from clusterrun.machine.cgroup import OomCounters as OomCounters
from clusterrun.machine.cgroup import cpu_quota as cpu_quota
from clusterrun.machine.cgroup import hierarchy_of as hierarchy_of
from clusterrun.machine.cgroup import machine_ran_out as machine_ran_out
from clusterrun.machine.cgroup import oom_kills_between as oom_kills_between
from clusterrun.machine.cpus import Processors as Processors
from clusterrun.machine.cpus import read_nodes as read_nodes
from clusterrun.machine.cpus import read_processors as read_processors
from clusterrun.machine.gpus import amd, nvidia
from clusterrun.machine.gpus import pci as pci
from clusterrun.machine.gpus.devices import NO_GPUS as NO_GPUS
from clusterrun.machine.gpus.devices import Choice as Choice
from clusterrun.machine.gpus.devices import Device as Device
from clusterrun.machine.gpus.devices import Listing as Listing
from clusterrun.machine.gpus.faults import Fault as Fault
from clusterrun.machine.gpus.faults import broken_gpus as broken_gpus
from clusterrun.machine.gpus.inventory import list_addresses as list_addresses
from clusterrun.machine.gpus.inventory import list_gpus as list_gpus
from clusterrun.machine.gpus.locality import UNKNOWN as UNKNOWN
from clusterrun.machine.gpus.locality import Locality as Locality
from clusterrun.machine.gpus.locality import Locator as Locator
from clusterrun.machine.gpus.nvidia import from_nvml as from_nvml
from clusterrun.machine.gpus.nvidia import is_order_known as is_order_known
from clusterrun.machine.gpus.nvidia import parse as parse
from clusterrun.machine.gpus.nvml import HUNG as HUNG
from clusterrun.machine.gpus.nvml import NvmlGpu as NvmlGpu
from clusterrun.machine.gpus.nvml import Question as Question
from clusterrun.machine.gpus.nvml import ask_in_child as ask_in_child
from clusterrun.machine.gpus.nvml import gpus_in as gpus_in
from clusterrun.machine.gpus.pci import in_bus_order as in_bus_order
from clusterrun.machine.gpus.pci import normalised as normalised
from clusterrun.machine.gpus.slowdowns import slow_gpus as slow_gpus
from clusterrun.machine.gpus.usage import SECONDS_BETWEEN_QUESTIONS as SECONDS_BETWEEN_QUESTIONS
from clusterrun.machine.gpus.usage import SECONDS_VALID as SECONDS_VALID
from clusterrun.machine.gpus.usage import GpuUsage as GpuUsage
from clusterrun.machine.gpus.visible import select_visible as select_visible
from clusterrun.machine.health import hardware as hardware
from clusterrun.machine.health import limits as limits
from clusterrun.machine.health import network as network
from clusterrun.machine.health import storage as storage
from clusterrun.machine.health.finding import Finding as Finding
from clusterrun.machine.health.finding import Level as Level
from clusterrun.machine.inspect import inspect as inspect
from clusterrun.machine.looking import LEFT_OUT as LEFT_OUT
from clusterrun.machine.looking import MISSING as MISSING
from clusterrun.machine.looking import MOST_KEPT as MOST_KEPT
from clusterrun.machine.looking import MOST_OF_A_NODE as MOST_OF_A_NODE
from clusterrun.machine.looking import SECONDS_FOR_ONE as SECONDS_FOR_ONE
from clusterrun.machine.looking import ProcessUsage as ProcessUsage
from clusterrun.machine.looking import PySpy as PySpy
from clusterrun.machine.looking import Units as Units
from clusterrun.machine.looking import usage_of as usage_of
from clusterrun.machine.looking import why_silent as why_silent
from clusterrun.machine.tree import Answers as Answers
from clusterrun.machine.tree import Tree as Tree
from clusterrun.machine.tree import cpus_of as cpus_of
from clusterrun.machine.tree import number_of as number_of
from clusterrun.network.channel import FROM_MEMBERS as FROM_MEMBERS
from clusterrun.network.channel import LONGEST_FRAME as LONGEST_FRAME
from clusterrun.policy.looks import GpuState as GpuState
from clusterrun.policy.looks import LookAtNativeStacks as LookAtNativeStacks
from clusterrun.policy.looks import NativeStack as NativeStack
from clusterrun.policy.looks import NodeNativeStacks as NodeNativeStacks
from clusterrun.policy.messages import Part as Part

choose_amd = amd.choose
list_amd_addresses = amd.list_addresses
list_amd_gpus = amd.list_gpus
choose_nvidia = nvidia.choose
