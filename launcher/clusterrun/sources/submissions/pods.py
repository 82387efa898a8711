"""Read what only Kubernetes is asked for."""

import re

from clusterrun.domain.submissions.pods import MountedName, Toleration
from clusterrun.errors import UsageError

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
LONGEST_NAME = 253

_LABEL_KEY = r"(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = r"(?:[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?)?"
_PAIR = re.compile(rf"({_LABEL_KEY})=({_LABEL_VALUE})")
_TOLERATION = re.compile(rf"({_LABEL_KEY})(?:=({_LABEL_VALUE}))?(?::(\w+))?")
_DNS_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_MOUNT = re.compile(r"([a-z0-9][a-z0-9.-]*):(/[\w./-]+)")


def dns_name(text: str) -> str:
    """Read the name of an object: small letters, digits, - and . (RFC 1123)."""
    if not _DNS_NAME.fullmatch(text) or len(text) > LONGEST_NAME:
        raise UsageError(f"{text!r} is not a name", "give small letters, digits, - and .")
    return text


def resource(text: str) -> str:
    """Read the name of a device plugin's resource: ``nvidia.com/gpu``."""
    if not re.fullmatch(r"[a-z0-9.-]+/[\w.-]+", text):
        raise UsageError(
            f"{text!r} is not the name of a resource",
            "give, for example, nvidia.com/gpu, amd.com/gpu or gpu.intel.com/i915",
        )
    return text


def node_selector(text: str) -> tuple[tuple[str, str], ...]:
    """Read ``KEY=VALUE,...``."""
    found = [_PAIR.fullmatch(part.strip()) for part in text.split(",")]
    if None in found:
        raise UsageError(f"{text!r} are no labels of nodes", "give, for example, pool=h100")
    return tuple((each[1], each[2]) for each in found if each)


def tolerations(text: str) -> tuple[Toleration, ...]:
    """Read ``KEY[=VALUE][:EFFECT],...``."""
    found = [_TOLERATION.fullmatch(part.strip()) for part in text.split(",")]
    if None in found or any(each and each[3] not in {None, *EFFECTS} for each in found):
        raise UsageError(
            f"{text!r} are no taints of nodes",
            f"give KEY, KEY=VALUE or KEY:EFFECT; effects are {', '.join(EFFECTS)}",
        )
    return tuple(Toleration(each[1], each[2] or "", each[3] or "") for each in found if each)


def mounted_names(text: str) -> tuple[MountedName, ...]:
    """Read ``NAME:/FOLDER,...``."""
    found = [_MOUNT.fullmatch(part.strip()) for part in text.split(",")]
    if None in found:
        raise UsageError(
            f"{text!r} is not NAME:/FOLDER", "give the object's name and a folder: data:/mnt/data"
        )
    return tuple(MountedName(each[1], each[2]) for each in found if each)
