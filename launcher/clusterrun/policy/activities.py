"""What a main thread does, by its stacks: a table of patterns, and the shares of one window."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import as_name, as_share
from clusterrun.policy.samples import Activity, SampledPlace, WindowSample

MOST_PLACES = 8
"""Of a rank in a window: rarer ones decide nothing."""

UNKNOWN = "?"
"""The place of an empty stack."""

Stack = Sequence[str]
"""Frames as py-spy prints them with --full-filenames, outermost first: "step (/home/me/train.py:88)"."""

_LIBRARY = re.compile(
    r".*/(?:(?:site|dist)-packages/|lib(?:64)?/python\d[^/]*/|clusterrun/(?=workers/|clients/))|<"
)
"""What a file begins with that is not the user's; "<": "<frozen importlib._bootstrap>"."""


class _Frame(Struct, frozen=True):
    function: str
    """With its class, where Python knows it: "Samples.__getitem__"."""
    file: str
    """Of a library, below its folder: "torch/serialization.py"."""
    line: str
    is_library: bool

    @property
    def text(self) -> str:
        """What the table's patterns are for; the files of a user match none that begins with "("."""
        return f"{self.function} ({self.file}" if self.is_library else f"{self.function} "

    @property
    def place(self) -> str:
        return as_name(f"{self.file.rpartition('/')[2]}:{self.line} {self.function}")


class _Where(Enum):
    ANYWHERE = "in any frame"
    INNERMOST = "in the innermost frame"


class _Row(Struct, frozen=True):
    activity: Activity
    where: _Where
    pattern: re.Pattern[str]


def _row(activity: Activity, where: _Where, *patterns: str) -> _Row:
    return _Row(activity, where, re.compile("|".join(patterns)))


_TABLE = (
    _row(
        Activity.DATA,
        _Where.ANYWHERE,
        r"\((?:torch/utils/data|torchvision/io|torchcodec|PIL)/",
        r"\((?:datasets|webdataset|litdata|streaming)/",
        r"(?:^|\.)__getitem__ $",
    ),
    _row(
        Activity.SAVE,
        _Where.ANYWHERE,
        r"\((?:torch/serialization\.py|torch/distributed/checkpoint/|safetensors/)",
        r"\(lightning\S*/fabric/utilities/cloud_io",
    ),
    # FSDP and tensors compute in torch/distributed, too: of these, only what waits.
    _row(
        Activity.WAIT,
        _Where.INNERMOST,
        r"\(torch/distributed/(?!fsdp/|tensor/|_tensor/)",
        r"\((?:mpi4py|horovod)/",
        r"^(?:\w+\.)*(?:wait\w*|_wait_all_gather\w*|synchronize|barrier) \(torch/distributed/",
        r"^(?:\w+\.)*(?:wait_tensor|wait_stream|[Aa]llreduce|[Bb]arrier|[Bb]cast) ",
    ),
    _row(
        Activity.GPU,
        _Where.INNERMOST,
        r"\(torch/cuda/(?:__init__|streams)\.py",
        r"^(?:\w+\.)*synchronize ",
    ),
    _row(
        Activity.BACKWARD,
        _Where.INNERMOST,
        r"^(?:\w+\.)*(?:_engine_run_backward|backward) \(torch/autograd/",
    ),
    _row(Activity.OPTIMIZER, _Where.ANYWHERE, r"\(torch/optim/"),
    _row(Activity.COMPUTE, _Where.INNERMOST, r"\(torch/"),
)
"""The first row that fits decides."""


def activity_of(stack: Stack) -> tuple[Activity, str]:
    """Return what a thread with this stack does, and where in the user's code.

    The place is that of the innermost frame that is not a library's: "train.py:88 step"; of the
    innermost one, if all are.
    """
    frames = [_frame(text) for text in stack]
    if not frames:
        return Activity.OTHER, UNKNOWN
    own = [frame for frame in frames if not frame.is_library]
    place = (own or frames)[-1].place
    texts = [frame.text for frame in frames]
    for row in _TABLE:
        if any(map(row.pattern.search, texts if row.where is _Where.ANYWHERE else texts[-1:])):
            return row.activity, place
    return Activity.OTHER, place


def with_stacks(window: WindowSample, stacks: Mapping[tuple[str, ...], int]) -> WindowSample:
    """Add the activities and places of a window in which each stack was seen this many times.

    BACKWARD is computing and waiting in one: under DDP, backward waits for the other ranks without a
    Python frame. The kernel tells them apart. As long as the thread was neither on a CPU nor ready to
    run, it was asleep, and what the activities that sleep do not explain of that is waiting.
    """
    counts: Counter[Activity] = Counter()
    places: Counter[tuple[Activity, str]] = Counter()
    for stack, times in stacks.items():
        activity, place = activity_of(stack)
        counts[activity] += times
        places[activity, place] += times
    total = counts.total()
    if not total:
        return window
    shares = {activity: times / total for activity, times in counts.items()}
    return replace(
        window,
        samples=total,
        activities={
            activity: as_share(share)
            for activity, share in _split_backward(shares, 1 - window.cpu - window.queue).items()
        },
        places=_most_common(places, total),
    )


def places_of(stacks: Mapping[tuple[str, ...], int]) -> tuple[SampledPlace, ...]:
    """Return the most common places of stacks that were seen this many times."""
    places: Counter[tuple[Activity, str]] = Counter()
    for stack, times in stacks.items():
        places[activity_of(stack)] += times
    return _most_common(places, places.total())


def _most_common(places: Counter[tuple[Activity, str]], total: int) -> tuple[SampledPlace, ...]:
    return tuple(
        SampledPlace(activity, place, as_share(times / total))
        for (activity, place), times in places.most_common(MOST_PLACES)
    )


_SLEEPS = (Activity.DATA, Activity.SAVE, Activity.WAIT, Activity.GPU, Activity.OTHER)


def _split_backward(shares: Mapping[Activity, float], asleep: float) -> dict[Activity, float]:
    split = {**shares}
    backward = split.pop(Activity.BACKWARD, 0.0)
    if backward:
        explained = sum(split.get(activity, 0.0) for activity in _SLEEPS)
        waits = min(backward, max(0.0, asleep - explained))
        split[Activity.WAIT] = split.get(Activity.WAIT, 0.0) + waits
        split[Activity.COMPUTE] = split.get(Activity.COMPUTE, 0.0) + backward - waits
    return split


def _frame(text: str) -> _Frame:
    function, _, where = text.partition(" (")
    file, _, line = where.rstrip(")").rpartition(":")
    library = _LIBRARY.match(file)
    # "<string>" and the like keep their name.
    below = file[library.end() :] if library and file[0] != "<" else file
    return _Frame(function, below, line, library is not None)
