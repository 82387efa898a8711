"""The GPUs that the workers see, in their order: the vendor, and what its variables leave (docs/binding.md S2)."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from clusterrun.machine.gpus.devices import NO_GPUS, Choice, Device, Listing

_CUDA = "CUDA_VISIBLE_DEVICES"

_OWN_VARIABLES: Mapping[str, Sequence[str]] = {
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK",),
    "huawei": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""A user who sets one wants this vendor's GPUs; AMD's runtime reads CUDA's variable, too."""

_HIDE_ALL = ("", "-1", "NoDevFiles")
"""Values that people and tools set to hide all GPUs."""
_HIDDEN = tuple(f"{_CUDA}={text}" for text in _HIDE_ALL)

Reader = Callable[[Listing, Mapping[str, str]], Choice]


class Visible(Struct, frozen=True):
    """The GPUs that are left, in the order of the workers."""

    devices: tuple[Device, ...]
    origin: str
    """The variable with its value, or the source of the list."""
    remark: str
    """Which entry cut the list short or why nothing is visible; "" if there is no remark."""
    order_known: bool
    """Whether the runtime numbers the GPUs as ``devices`` does."""


def select_visible(listings: Sequence[Listing], environ: Mapping[str, str]) -> Visible:
    """Return which GPUs the job's environment leaves, and in which order.

    On a machine with GPUs of several vendors a job uses the vendor whose own variable is set, else
    the first: which vendor its torch is built for is unknown without importing it.
    """
    listing = _listing_for(listings, environ)
    if not listing.devices:
        return Visible((), *_without_gpus(environ), order_known=True)
    vendor = listing.devices[0].vendor
    choice = _reader(vendor)(listing, environ)
    return Visible(
        choice.devices,
        choice.origin or _source(listing, listings),
        "" if choice.origin in _HIDDEN else choice.remark,
        vendor in _OWN_VARIABLES or _is_order_known(listing, environ),
    )


def _listing_for(listings: Sequence[Listing], environ: Mapping[str, str]) -> Listing:
    named = (
        listing
        for listing in listings
        if any(name in environ for name in _OWN_VARIABLES.get(listing.devices[0].vendor, ()))
        # With CUDA's variable set as well, the vendor is not clear: the first is used.
        and _CUDA not in environ
    )
    return next(named, listings[0] if listings else NO_GPUS)


def _reader(vendor: str) -> Reader:
    match vendor:
        case "amd":
            from clusterrun.machine.gpus.amd import choose
        case "intel":
            from clusterrun.machine.gpus.intel import choose
        case "huawei":
            from clusterrun.machine.gpus.ascend import choose
        case _:
            from clusterrun.machine.gpus.nvidia import choose
    return choose


def _is_order_known(listing: Listing, environ: Mapping[str, str]) -> bool:
    from clusterrun.machine.gpus.nvidia import is_order_known

    return is_order_known(listing, environ)


def _without_gpus(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return origin and remark where no GPU may be opened."""
    text = environ.get(_CUDA)
    if text is None:
        return "", ""
    origin = f"{_CUDA}={text}"
    if text in _HIDE_ALL:
        return origin, ""
    return origin, f"{origin}, but this process may open no GPU"


def _source(listing: Listing, listings: Sequence[Listing]) -> str:
    others = [other.devices[0].vendor for other in listings if other is not listing]
    if not others:
        return listing.source
    return f"{listing.source} (of {listing.devices[0].vendor}, not of {' or '.join(others)})"
