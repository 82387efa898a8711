"""What the ranks of one node did in some seconds, as samples of their main threads: ``NodeSamples``."""

from enum import Enum

from msgspec import Struct

from clusterrun.bounds import Count, Line, Load, Name, ProcessId, Share, Size
from clusterrun.machine.machine import GpuState

WINDOWS = 2
"""A rank must be slow in each: one window alone accuses a healthy rank in a fifth of the cases."""


class Activity(Enum):
    """What a main thread does, by its stack."""

    DATA = "data"
    """Reads training data, or waits for its DataLoader processes."""
    SAVE = "save"
    """Writes or reads a checkpoint."""
    WAIT = "wait"
    """Waits for other ranks."""
    GPU = "gpu"
    """Waits for its GPU, which may wait for those of other ranks."""
    BACKWARD = "backward"
    """Computes gradients; under DDP it also waits for other ranks there, without a Python frame."""
    OPTIMIZER = "optimizer"
    COMPUTE = "compute"
    """Is in another function of torch."""
    OTHER = "other"


class SampledPlace(Struct, frozen=True, array_like=True):
    """A line of the script, and how much of the time was spent there."""

    activity: Activity
    place: Name
    """"train.py:88 Samples.__getitem__": the innermost frame that is not a library's."""
    share: Share


class WindowSample(Struct, frozen=True):
    """The main thread of one rank in one window."""

    cpu: Share
    """It ran on a CPU."""
    queue: Share
    """It was ready to run, and no CPU was free for it."""
    states: dict[Name, Share]
    """By what the kernel shows: "R" and "D" (proc_pid_stat(5)), or of a sleeping thread the kernel's
    function that it sleeps in (/proc/PID/wchan)."""
    loader_queue: Load = 0.0
    """``queue`` of its child processes together, as those of its DataLoaders."""
    loaders: dict[Name, Share] = {}
    """Their states: letters of proc_pid_stat(5)."""
    throttled: Share | None = None
    """The CPU quota of its cgroup held it up; None: it has no quota."""
    samples: Count = 0
    """How many stacks were seen; with none, the fields below are empty."""
    activities: dict[Activity, Share] = {}
    """Without BACKWARD, which is COMPUTE and WAIT here."""
    places: tuple[SampledPlace, ...] = ()
    """The most common ones."""


class WhyNoStacks(Enum):
    """Why a rank has no stacks."""

    MISSING = "the node has no py-spy"
    REFUSED = "py-spy may not read its memory"
    NOT_PYTHON = "it is not a Python process"
    ENDED = "it has ended"
    FAILED = "py-spy failed"


class RankSamples(Struct, frozen=True):
    """One rank."""

    rank: Count
    pid: ProcessId
    windows: tuple[WindowSample, ...]
    """One after the other, and the same ones of all ranks; none if it had ended before."""
    why_no_stacks: WhyNoStacks | None = None
    problem: Line | None = None
    """What py-spy said of it."""
    loader_places: tuple[SampledPlace, ...] = ()
    """Of its child processes; only where they were asked for."""
    gpus: tuple[GpuState, ...] = ()
    """Of its GPUs, as far as they are known."""


class NodeSamples(Struct, frozen=True):
    """All ranks of a node that were asked for."""

    ranks: tuple[RankSamples, ...]
    cpus: Size
    """CPUs that the ranks may use."""
    busy: Share
    """How much of the time of these CPUs was in use."""
    busy_by_job: Share
    """In use by the ranks and their child processes."""
    pressure: dict[Name, Share]
    """How long a task waited for "cpu", "io" or "memory" (/proc/pressure); empty if it is not known."""
    ptrace_scope: Count | None = None
    """/proc/sys/kernel/yama/ptrace_scope; None: there is none."""
