"""ASCEND_RT_VISIBLE_DEVICES, read as Huawei's CANN reads it."""

from collections.abc import Mapping

from clusterrun.machine.gpus.devices import Choice, Device, Listing

VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"


def choose(listing: Listing, environ: Mapping[str, str]) -> Choice:
    """Return which NPUs the job's environment leaves: numbers, up to the first that is not one."""
    text = environ.get(VARIABLE)
    if text is None:
        return Choice(listing.devices, "", "")
    by_number = {str(device.number): device for device in listing.devices}
    chosen: list[Device] = []
    for entry in text.split(",") if text else ():
        device = by_number.get(entry)
        if device is None or device in chosen:
            remark = f"{VARIABLE}={text}: {entry!r} is not an NPU here, or is listed twice"
            return Choice(
                tuple(chosen), f"{VARIABLE}={text}", f"{remark}; CANN ends the list there"
            )
        chosen.append(device)
    return Choice(tuple(chosen), f"{VARIABLE}={text}", "")
