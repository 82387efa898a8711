"""Captured machines: all that was read of a machine, as JSON. Captures are untrusted input."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from clusterrun.bounds import as_line
from clusterrun.cpuset import CpuSet
from clusterrun.errors import UsageError
from clusterrun.machine.tree import KernelAnswers, Tree

FORMAT = 2
"""Format 1 was an archive of files."""

MAX_SIZE = 64 * 2**20
"""Bytes. The capture of a large machine has a million."""

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
"""The variables that choose GPUs. No other variables are captured."""

_KEPT_LINES = {
    # Process and user ids are private.
    "proc/self/status": ("Cpus_allowed", "Mems_allowed"),
    # Other mounts are private. The mount of /proc is kept so that the file is not empty.
    "proc/self/mountinfo": (" - cgroup", " / /proc "),
    # The other lines change all the time.
    "meminfo": ("MemTotal",),
}
"""Files, by path or name, of which only the lines with one of these texts are kept."""

_KEPT_DEVICES = ("accel", "hl", "neuron", "nvidia")
"""Prefixes of the names in /dev that are kept: others may contain names of hosts or users."""

_COMPRESSED = (b"\xfd7zXZ\x00", b"BZh", b"\x1f\x8b")
"""The first bytes of .xz, .bz2 and .gz files."""

_COMMAND = "\n  clusterrun topo --capture machine.json"
_CAPTURE_ONE = f"to capture a machine, run this on it:{_COMMAND}"


class Capture(Struct, frozen=True):
    """All that was read of a machine."""

    format: int
    clusterrun: str
    """The version that wrote it."""
    allowed_cpus: str
    """The affinity of the captured process, in list form."""
    variables: dict[str, str]
    """The ``VARIABLES`` that were set."""
    answers: KernelAnswers


class _Head(Struct, frozen=True):
    """The fields that captures of all formats have."""

    format: int
    clusterrun: str


def encode_capture(tree: Tree, environ: Mapping[str, str], allowed: CpuSet) -> bytes:
    """Return the capture of a machine as JSON; the same text for the same machine.

    Args:
        tree: the machine, after everything was read that a replay will read.
        environ: the environment of the captured process.
        allowed: its CPU affinity.

    """
    # For maintainers who replay the capture on another machine.
    tree.answer("architecture", lambda: os.uname().machine)
    tree.kernel()
    from importlib.metadata import version

    capture = Capture(
        format=FORMAT,
        clusterrun=version("clusterrun"),
        allowed_cpus=str(allowed),
        variables={name: environ[name] for name in VARIABLES if name in environ},
        answers=_public(tree.answers),
    )
    # json, because msgspec rejects file names that are not UTF-8.
    return json.dumps(msgspec.to_builtins(capture), indent=1, sort_keys=True).encode() + b"\n"


def open_capture(
    root: Path, origin: str, environ: Mapping[str, str]
) -> tuple[Tree, CpuSet | None, Mapping[str, str]]:
    """Return a captured machine, the affinity of the captured process, and its environment.

    Args:
        root: a file that clusterrun wrote, or a folder with the ``sys`` and ``proc`` of a machine.
            For a folder the affinity is None: ``proc`` may have it.
        origin: where ``root`` was set, for messages.
        environ: our environment. The capture's variables for GPUs replace ours.

    Raises:
        UsageError: ``root`` is not a captured machine.

    """
    if root.is_dir():
        tree = Tree(root)
        if not tree.exists("sys") and not tree.exists("proc"):
            raise UsageError(
                f"{origin}: {root} is not a captured machine: it has neither sys nor proc",
                _CAPTURE_ONE,
            )
        return tree, None, environ
    try:
        with root.open("rb") as file:
            content = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise UsageError(
            f"{origin}: {root} can't be read: {error.strerror}", "give another path"
        ) from None
    if content.startswith(_COMPRESSED) or content[257:262] == b"ustar":
        raise UsageError(
            f"{origin}: {root} is an archive",
            "unpack it with tar -xf, and give the folder that has sys and proc in it; for one that"
            f" an older clusterrun wrote, run this again on that machine:{_COMMAND}",
        )
    try:
        capture = _read(content)
        allowed = CpuSet.parse(capture.allowed_cpus)
    # RecursionError: deeply nested lists. MsgspecError is a ValueError only in newer versions.
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{origin}: {root} is not a captured machine: {error}", _CAPTURE_ONE
        ) from None
    others = {name: value for name, value in environ.items() if name not in VARIABLES}
    variables = {name: text for name, text in capture.variables.items() if name in VARIABLES}
    return Tree(None, capture.answers), allowed, others | variables


def _read(content: bytes) -> Capture:
    if len(content) > MAX_SIZE:
        raise ValueError(f"it has more than {MAX_SIZE >> 20} MiB")
    document = json.loads(content)
    head = msgspec.convert(document, _Head)
    if head.format != FORMAT:
        raise ValueError(
            f"clusterrun {as_line(head.clusterrun)} wrote it, in a format that this version does"
            " not know"
        )
    return msgspec.convert(document, Capture)


def _public(answers: KernelAnswers) -> KernelAnswers:
    """Return the answers without private lines and names, and without those of missing files."""
    text = {path: _kept_lines(path, text) for path, text in answers.text.items()}
    names = dict(answers.names)
    if "dev" in names:
        names["dev"] = tuple(name for name in names["dev"] if name.startswith(_KEPT_DEVICES))
    public = msgspec.structs.asdict(answers) | {"text": text, "names": names}
    return KernelAnswers(
        **{
            question: {path: answer for path, answer in known.items() if answer}
            for question, known in public.items()
        }
    )


def _kept_lines(path: str, text: str) -> str:
    kept = _KEPT_LINES.get(path) or _KEPT_LINES.get(path.rpartition("/")[2])
    if kept is None:
        return text
    return "\n".join(line for line in text.splitlines() if any(word in line for word in kept))
