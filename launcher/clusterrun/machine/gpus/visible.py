"""Which GPUs the workers see, in which order: whose they are, and what their variables leave."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from clusterrun.machine.gpus.devices import NOTHING, Choice, Device, Listing

_CUDA = "CUDA_VISIBLE_DEVICES"

_OWN_VARIABLES: Mapping[str, Sequence[str]] = {
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK",),
    "huawei": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""What is set only by who means this vendor's GPUs; CUDA's is read by AMD's runtime too."""

_NOTHING_ON_PURPOSE = ("", "-1", "NoDevFiles")
"""What people and tools write to hide every GPU."""
_HIDDEN = tuple(f"{_CUDA}={text}" for text in _NOTHING_ON_PURPOSE)

Reader = Callable[[Listing, Mapping[str, str]], Choice]


class Visible(NamedTuple):
    """The GPUs that are left, in the order of the workers."""

    devices: tuple[Device, ...]
    origin: str
    """The variable with its value, or the source that listed the GPUs."""
    remark: str
    """Which entry cut the list short or why nothing is visible; "" if there is nothing to say."""
    order_known: bool
    """Whether the runtime numbers the GPUs as ``devices`` does."""


def select_visible(listings: Sequence[Listing], environ: Mapping[str, str]) -> Visible:
    """Return which GPUs the job's environment leaves, and in which order.

    Of a machine with GPUs of several vendors a job uses those that a variable of their own names,
    else the first vendor's: which build of torch it runs can't be told without importing that.
    """
    listing = _meant(listings, environ)
    if not listing.devices:
        return Visible((), *_nothing_to_choose_from(environ), order_known=True)
    vendor = listing.devices[0].vendor
    choice = _reader(vendor)(listing, environ)
    return Visible(
        choice.devices,
        choice.origin or _source(listing, listings),
        "" if choice.origin in _HIDDEN else choice.remark,
        vendor in _OWN_VARIABLES or _is_order_known(listing, environ),
    )


def _meant(listings: Sequence[Listing], environ: Mapping[str, str]) -> Listing:
    named = (
        listing
        for listing in listings
        if any(name in environ for name in _OWN_VARIABLES.get(listing.devices[0].vendor, ()))
        # With CUDA's set as well, nothing tells whose are meant: the usual order holds.
        and _CUDA not in environ
    )
    return next(named, listings[0] if listings else NOTHING)


def _reader(vendor: str) -> Reader:
    match vendor:
        case "amd":
            from clusterrun.machine.gpus.visible_rocm import choose
        case "intel":
            from clusterrun.machine.gpus.visible_xpu import choose
        case "huawei":
            from clusterrun.machine.gpus.visible_npu import choose
        case _:
            from clusterrun.machine.gpus.visible_cuda import choose
    return choose


def _is_order_known(listing: Listing, environ: Mapping[str, str]) -> bool:
    from clusterrun.machine.gpus.visible_cuda import is_order_known

    return is_order_known(listing, environ)


def _nothing_to_choose_from(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return origin and remark where no GPU may be opened."""
    text = environ.get(_CUDA)
    if text is None:
        return "", ""
    said = f"{_CUDA}={text}"
    if text in _NOTHING_ON_PURPOSE:
        return said, ""
    return said, f"{said}, but there is no GPU that this process may open"


def _source(listing: Listing, listings: Sequence[Listing]) -> str:
    others = [other.devices[0].vendor for other in listings if other is not listing]
    if not others:
        return listing.source
    return f"{listing.source} (of {listing.devices[0].vendor}, not of {' or '.join(others)})"
