"""Samples of the main threads of a node's ranks over some seconds."""

from enum import Enum

from msgspec import Struct

from clusterrun.bounds import Count, Line, Load, Name, ProcessId, Share, Size
from clusterrun.machine.machine import GpuState

WINDOWS = 2
"""A slow rank must be slow in each window: a single window shows a healthy rank as slow in one case of
five."""


class Activity(Enum):
    """What a main thread does, by its stack."""

    DATA = "data"
    """It reads training data, or waits for its DataLoader processes."""
    SAVE = "save"
    """It writes or reads a checkpoint."""
    WAIT = "wait"
    """It waits for other ranks."""
    GPU = "gpu"
    """It waits for its GPU, which may wait for the GPUs of other ranks."""
    BACKWARD = "backward"
    """It computes gradients; DDP also waits for other ranks there, without a Python frame."""
    OPTIMIZER = "optimizer"
    COMPUTE = "compute"
    """It runs another function of torch."""
    OTHER = "other"


class SampledPlace(Struct, frozen=True, array_like=True):
    """A line of the script, and the share of the samples that show it."""

    activity: Activity
    place: Name
    """"train.py:88 Samples.__getitem__": the innermost frame that is not a library's."""
    share: Share


class WindowSample(Struct, frozen=True):
    """The main thread of one rank in one window, as shares of the window."""

    cpu: Share
    """On a CPU."""
    queue: Share
    """Runnable, but without a CPU."""
    states: dict[Name, Share]
    """In each state: "R" and "D" (proc_pid_stat(5)), or for a sleeping thread the kernel function in
    which it sleeps (/proc/PID/wchan)."""
    loader_queue: Load = 0.0
    """The sum of ``queue`` of its child processes, such as DataLoader workers."""
    loaders: dict[Name, Share] = {}
    """The states of its child processes: letters of proc_pid_stat(5)."""
    throttled: Share | None = None
    """Throttled by the CPU quota of its cgroup; None without a quota."""
    samples: Count = 0
    """The number of stacks; without stacks, the fields below are empty."""
    activities: dict[Activity, Share] = {}
    """BACKWARD is divided into COMPUTE and WAIT."""
    places: tuple[SampledPlace, ...] = ()
    """The most common places."""


class WhyNoStacks(Enum):
    """Why a rank has no stacks."""

    MISSING = "the node has no py-spy"
    REFUSED = "py-spy may not read its memory"
    NOT_PYTHON = "it is not a Python process"
    ENDED = "it has ended"
    FAILED = "py-spy failed"


class RankSamples(Struct, frozen=True):
    """The samples of one rank."""

    rank: Count
    pid: ProcessId
    windows: tuple[WindowSample, ...]
    """The windows in order, at the same times on all ranks; none if the rank had ended."""
    why_no_stacks: WhyNoStacks | None = None
    problem: Line | None = None
    """The error of py-spy."""
    loader_places: tuple[SampledPlace, ...] = ()
    """The places of its child processes, if the query asked for them."""
    gpus: tuple[GpuState, ...] = ()
    """The states of its GPUs, if they are known."""


class NodeSamples(Struct, frozen=True):
    """The samples of a node's ranks."""

    ranks: tuple[RankSamples, ...]
    cpus: Size
    """The number of CPUs that the ranks may use."""
    busy: Share
    """The share of their time in which these CPUs were busy."""
    busy_by_job: Share
    """The part of ``busy`` that the ranks and their child processes used."""
    pressure: dict[Name, Share]
    """The share of time in which a task waited for "cpu", "io" or "memory" (/proc/pressure), if known."""
    ptrace_scope: Count | None = None
    """/proc/sys/kernel/yama/ptrace_scope, if it exists."""
