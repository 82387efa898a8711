"""Notes in a capture: the version, the kernel, and the CPUs and variables of the captured process."""

import os
from collections.abc import Mapping

import msgspec

from clusterrun.domain.cpuset import CpuSet
from clusterrun.machine.tree import Tree

FILE = "capture.json"
"""Its path in the capture."""

FORMAT = 1

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "ZE_FLAT_DEVICE_HIERARCHY",
    "ONEAPI_DEVICE_SELECTOR",
    "ASCEND_RT_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
)
"""The variables that choose GPUs; no other variable is captured."""


class Notes(msgspec.Struct, frozen=True):
    """Facts of a captured machine and its process that no file has."""

    clusterrun: str
    """The version of clusterrun that captured it."""
    kernel: str
    """``6.8.0-45-generic``; "" if unknown."""
    architecture: str
    """``x86_64``."""
    allowed_cpus: str
    """The affinity of the captured process, as a list."""
    variables: dict[str, str]
    """Those of ``VARIABLES`` that were set."""
    format: int = FORMAT


def take_notes(tree: Tree, environ: Mapping[str, str], allowed: CpuSet) -> Notes:
    """Return notes on a machine.

    Args:
        tree: the machine; notes of one that was captured before are kept.
        environ: the environment of the captured process.
        allowed: the CPUs that this process may use.

    """
    return msgspec.structs.replace(
        _notes_on(tree),
        allowed_cpus=str(allowed),
        variables={name: environ[name] for name in VARIABLES if name in environ},
    )


def read_notes(tree: Tree) -> Notes | None:
    """Return the notes on a captured machine; None if another tool captured it.

    Raises:
        ValueError: they are damaged, or of another version.

    """
    text = tree.text(FILE)
    if not text:
        return None
    try:
        notes = msgspec.json.decode(text.encode(), type=Notes)
    except msgspec.MsgspecError as error:
        # Only newer versions of msgspec make it a ValueError.
        raise ValueError(str(error)) from None
    if notes.format != FORMAT:
        raise ValueError(
            f"it is of clusterrun {notes.clusterrun}, whose format this version does not know"
        )
    CpuSet.parse(notes.allowed_cpus)
    return notes


def write_notes(notes: Notes) -> bytes:
    """Return the notes as text for people and programs."""
    return msgspec.json.format(msgspec.json.encode(notes), indent=2) + b"\n"


def _notes_on(tree: Tree) -> Notes:
    if not tree.is_live and (known := read_notes(tree)):
        return known
    from importlib.metadata import version

    kernel = os.uname() if tree.is_live else None
    return Notes(
        clusterrun=version("clusterrun"),
        kernel=kernel.release if kernel else "",
        architecture=kernel.machine if kernel else "",
        allowed_cpus="",
        variables={},
    )
