"""ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES, each read as its runtime reads it."""

from collections.abc import Mapping, Sequence

from clusterrun.machine.gpus.devices import Choice, Device, Listing

ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
_CUDA = "CUDA_VISIBLE_DEVICES"


def choose(listing: Listing, environ: Mapping[str, str]) -> Choice:
    """Return which GPUs the job's environment leaves.

    The lower runtime applies its list first; the upper one counts the GPUs that are left, and reads
    CUDA_VISIBLE_DEVICES if it has no list of its own.
    """
    devices, origins, remarks = listing.devices, [], []
    upper = HIP if HIP in environ else _CUDA
    for variable, read in ((ROCR, _read_rocr), (upper, _read_hip)):
        text = environ.get(variable)
        if text is not None:
            origins.append(f"{variable}={text}")
            devices, remark = read(text, devices, variable)
            remarks.append(remark)
    return Choice(devices, " ".join(origins), next(filter(None, remarks), ""))


_Read = tuple[tuple[Device, ...], str]


def _read_rocr(text: str, devices: Sequence[Device], variable: str) -> _Read:
    # As RvdFilter of ROCR-Runtime: numbers of any base, UUIDs in any case; a wrong or repeated entry
    # ends the list.
    chosen: list[Device] = []
    for entry in text.split(",") if text else ():
        device = _by_rocr(entry.strip().upper(), devices)
        if device is None or device in chosen:
            return tuple(chosen), _cut(variable, text, entry, "ROCm")
        chosen.append(device)
    return tuple(chosen), ""


def _by_rocr(entry: str, devices: Sequence[Device]) -> Device | None:
    if entry.startswith("G"):
        found = [device for device in devices if device.uuid.upper().startswith(entry)]
        return found[0] if len(entry) >= len("GPU-0") and len(found) == 1 else None
    try:
        # strtol takes "010" for eight, where Python takes it for an error.
        number = int(entry, 8 if entry.startswith("0") and entry.isdecimal() else 0)
    except ValueError:
        return None
    return devices[number] if 0 <= number < len(devices) else None


def _read_hip(text: str, devices: Sequence[Device], variable: str) -> _Read:
    # As HIP's device.cpp: numbers as they are printed, any part of a UUID; a wrong entry ends the
    # list, a repeated one counts once.
    chosen: list[Device] = []
    for entry in text.split(",") if text else ():
        device = _by_hip(entry, devices)
        if device is None:
            purpose = entry == "-1"
            return tuple(chosen), "" if purpose else _cut(variable, text, entry, "HIP")
        if device not in chosen:
            chosen.append(device)
    return tuple(chosen), ""


def _by_hip(entry: str, devices: Sequence[Device]) -> Device | None:
    if "GPU-" in entry:
        return next((device for device in devices if entry in device.uuid), None)
    return next((device for at, device in enumerate(devices) if entry == str(at)), None)


def _cut(variable: str, text: str, entry: str, reader: str) -> str:
    return f"{variable}={text}: {entry!r} is not a GPU here, or is listed twice; {reader} ends the list there"
