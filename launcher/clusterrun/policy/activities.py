"""The activity of a main thread, by its stacks: a table of patterns, and the shares in a window."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from clusterrun.bounds import as_name, as_share
from clusterrun.policy.samples import Activity, SampledPlace, WindowSample

MAX_PLACES = 8
"""Places of a rank in a window; rarer places do not matter."""

Stack = Sequence[str]
"""Frames, outermost first, as ``py-spy --full-filenames`` prints them: "step (/home/me/train.py:88)"."""

_LIBRARY = re.compile(
    r".*/(?:(?:site|dist)-packages/|lib(?:64)?/python\d[^/]*/|clusterrun/(?=workers/|clients/))|<"
)
"""The beginning of a path that is not the user's; "<" is for "<frozen importlib._bootstrap>"."""


class _Frame(NamedTuple):
    text: str
    """The function, and for a library "(" and the file, so patterns with "(" never match user code."""
    place: str
    is_library: bool


Where = Callable[[Sequence[str]], Sequence[str]]
"""Selects the frames of a stack that a row's patterns are for."""


def _anywhere(frames: Sequence[str]) -> Sequence[str]:
    return frames


def _innermost(frames: Sequence[str]) -> Sequence[str]:
    return frames[-1:]


def _called_by_torch(frames: Sequence[str]) -> Sequence[str]:
    """Return the innermost frames up to the first that is not torch's."""
    others = [at for at, frame in enumerate(frames) if "(torch/" not in frame]
    return frames[others[-1] + 1 :] if others else frames


def _row(
    activity: Activity, where: Where, *patterns: str
) -> tuple[Activity, Where, re.Pattern[str]]:
    return activity, where, re.compile("|".join(patterns))


_TABLE = (
    _row(
        Activity.DATA,
        _anywhere,
        r"\((?:torch/utils/data|torchvision/io|torchcodec|PIL)/",
        r"\((?:datasets|webdataset|litdata|streaming)/",
        r"(?:^|\.)__getitem__ $",
    ),
    _row(
        Activity.SAVE,
        _anywhere,
        r"\((?:torch/serialization\.py|torch/distributed/checkpoint/|safetensors/)",
        r"\(lightning\S*/fabric/utilities/cloud_io",
    ),
    # FSDP and DTensor also compute in torch/distributed: only their waiting functions are listed.
    _row(
        Activity.WAIT,
        _innermost,
        r"\(torch/distributed/(?!fsdp/|tensor/|_tensor/)",
        r"\((?:mpi4py|horovod)/",
        r"^(?:\w+\.)*(?:wait\w*|_wait_all_gather\w*|synchronize|barrier) \(torch/distributed/",
        r"^(?:\w+\.)*(?:wait_tensor|wait_stream|[Aa]llreduce|[Bb]arrier|[Bb]cast) ",
    ),
    _row(
        Activity.GPU,
        _innermost,
        r"\(torch/cuda/(?:__init__|streams)\.py",
        r"^(?:\w+\.)*synchronize ",
    ),
    _row(
        Activity.BACKWARD,
        _innermost,
        r"^(?:\w+\.)*(?:_engine_run_backward|backward) \(torch/autograd/",
    ),
    # Only the optimizer itself: Lightning's closure, which it calls, has the forward and backward pass.
    _row(Activity.OPTIMIZER, _called_by_torch, r"\(torch/optim/"),
    _row(Activity.COMPUTE, _innermost, r"\(torch/"),
)
"""The first row that matches decides."""


def activity_of(stack: Stack) -> tuple[Activity, str]:
    """Return the activity of a thread with this stack, and its place: "train.py:88 step".

    The place is the innermost frame of the user's code, or the innermost frame if all are in libraries,
    or "?" if the stack is empty.
    """
    frames = [_frame(text) for text in stack]
    if not frames:
        return Activity.OTHER, "?"
    own = [frame for frame in frames if not frame.is_library]
    place = (own or frames)[-1].place
    texts = [frame.text for frame in frames]
    for activity, where, pattern in _TABLE:
        if any(map(pattern.search, where(texts))):
            return activity, place
    return Activity.OTHER, place


def with_stacks(window: WindowSample, stacks: Mapping[tuple[str, ...], int]) -> WindowSample:
    """Return the window with activities and places, by how often each stack was seen.

    Under DDP, the backward pass also waits for other ranks, without a Python frame. So BACKWARD is
    divided by the kernel's counters: the thread slept whenever it was neither on a CPU nor runnable, and
    the sleep that other activities do not explain is WAIT.
    """
    places = _counted(stacks)
    total = places.total()
    if not total:
        return window
    counts: Counter[Activity] = Counter()
    for (activity, _), times in places.items():
        counts[activity] += times
    shares = {activity: times / total for activity, times in counts.items()}
    if backward := shares.pop(Activity.BACKWARD, 0.0):
        explained = sum(shares.get(activity, 0.0) for activity in _SLEEPS)
        waits = min(backward, max(0.0, 1 - window.cpu - window.queue - explained))
        shares[Activity.WAIT] = shares.get(Activity.WAIT, 0.0) + waits
        shares[Activity.COMPUTE] = shares.get(Activity.COMPUTE, 0.0) + backward - waits
    activities = {activity: as_share(share) for activity, share in shares.items()}
    return replace(window, samples=total, activities=activities, places=_most_common(places))


def places_of(stacks: Mapping[tuple[str, ...], int]) -> tuple[SampledPlace, ...]:
    """Return the most common places, by how often each stack was seen."""
    return _most_common(_counted(stacks))


def _counted(stacks: Mapping[tuple[str, ...], int]) -> Counter[tuple[Activity, str]]:
    places: Counter[tuple[Activity, str]] = Counter()
    for stack, times in stacks.items():
        places[activity_of(stack)] += times
    return places


def _most_common(places: Counter[tuple[Activity, str]]) -> tuple[SampledPlace, ...]:
    total = places.total()
    return tuple(
        SampledPlace(activity, place, as_share(times / total))
        for (activity, place), times in places.most_common(MAX_PLACES)
    )


_SLEEPS = (Activity.DATA, Activity.SAVE, Activity.WAIT, Activity.GPU, Activity.OTHER)


def _frame(text: str) -> _Frame:
    function, _, where = text.partition(" (")
    file, _, line = where.rstrip(")").rpartition(":")
    place = as_name(f"{file.rpartition('/')[2]}:{line} {function}")
    if library := _LIBRARY.match(file):
        return _Frame(f"{function} ({file[library.end() :]}", place, is_library=True)
    return _Frame(f"{function} ", place, is_library=False)
