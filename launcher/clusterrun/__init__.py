"""Start one training process per GPU, on one machine or many, and look after all of them.

Importing this package imports nothing else and starts nothing: each public name is imported when
it is first used.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from clusterrun import suspend
    from clusterrun.errors import (
        InternalError,
        LauncherError,
        MachineError,
        NodeLostError,
        RendezvousError,
        UsageError,
    )
    from clusterrun.from_python.errors import JobInterrupted, RemoteTraceback, WorkerFailed
    from clusterrun.from_python.launch import launch
    from clusterrun.from_python.spawn import spawn
    from clusterrun.from_python.workers import Workers

__all__ = [
    "InternalError",
    "JobInterrupted",
    "LauncherError",
    "MachineError",
    "NodeLostError",
    "RemoteTraceback",
    "RendezvousError",
    "UsageError",
    "WorkerFailed",
    "Workers",
    "launch",
    "spawn",
    "suspend",
]

_MODULES = {
    "JobInterrupted": "clusterrun.from_python.errors",
    "RemoteTraceback": "clusterrun.from_python.errors",
    "WorkerFailed": "clusterrun.from_python.errors",
    "Workers": "clusterrun.from_python.workers",
    "launch": "clusterrun.from_python.launch",
    "spawn": "clusterrun.from_python.spawn",
}
"""Where public names are; those that it does not have are in ``clusterrun.errors``."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name == "suspend":
        return import_module("clusterrun.suspend")
    return getattr(import_module(_MODULES.get(name, "clusterrun.errors")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
