"""What a main thread does, by its stacks: a table of patterns, and the shares of one window."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from clusterrun.bounds import as_name, as_share
from clusterrun.policy.samples import Activity, SampledPlace, WindowSample

MAX_PLACES = 8
"""Of a rank in a window: rarer ones decide nothing."""

Stack = Sequence[str]
"""Frames as py-spy prints them with --full-filenames, outermost first: "step (/home/me/train.py:88)"."""

_LIBRARY = re.compile(
    r".*/(?:(?:site|dist)-packages/|lib(?:64)?/python\d[^/]*/|clusterrun/(?=workers/|clients/))|<"
)
"""What a file begins with that is not the user's; "<": "<frozen importlib._bootstrap>"."""


class _Frame(NamedTuple):
    text: str
    """What the table's patterns are for; the files of a user match none that begins with "("."""
    place: str
    is_library: bool


Where = Callable[[Sequence[str]], Sequence[str]]
"""Returns the frames of a stack in which a row's patterns are looked for."""


def _anywhere(frames: Sequence[str]) -> Sequence[str]:
    return frames


def _innermost(frames: Sequence[str]) -> Sequence[str]:
    return frames[-1:]


def _called_by_torch(frames: Sequence[str]) -> Sequence[str]:
    """Return the innermost frames that are all torch's."""
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
    # FSDP and tensors compute in torch/distributed, too: of these, only what waits.
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
    # Not what an optimizer calls back: Lightning's closure has the forward and the backward pass.
    _row(Activity.OPTIMIZER, _called_by_torch, r"\(torch/optim/"),
    _row(Activity.COMPUTE, _innermost, r"\(torch/"),
)
"""The first row that fits decides."""


def activity_of(stack: Stack) -> tuple[Activity, str]:
    """Return what a thread with this stack does, and where in the user's code.

    The place is that of the innermost frame that is not a library's: "train.py:88 step"; of the
    innermost one, if all are; "?" of an empty stack.
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
    """Add the activities and places of a window in which each stack was seen this many times.

    BACKWARD is computing and waiting in one: under DDP, backward waits for the other ranks without a
    Python frame. The kernel tells them apart. As long as the thread was neither on a CPU nor ready to
    run, it was asleep, and what the activities that sleep do not explain of that is waiting.
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
    """Return the most common places of stacks that were seen this many times."""
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
