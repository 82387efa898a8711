"""Start one training process per GPU, on one machine or many, and look after all of them.

Importing this package imports nothing else and starts nothing: each public name is imported when
it is first used.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from clusterrun import suspend
    from clusterrun.clients.python.failures import JobInterrupted, RemoteTraceback, WorkerFailed
    from clusterrun.clients.python.launch import launch, spawn
    from clusterrun.clients.python.workers import Workers
    from clusterrun.errors import (
        InternalError,
        LauncherError,
        MachineError,
        NodeLostError,
        RendezvousError,
        UsageError,
    )

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
    "JobInterrupted": "clusterrun.clients.python.failures",
    "RemoteTraceback": "clusterrun.clients.python.failures",
    "WorkerFailed": "clusterrun.clients.python.failures",
    "Workers": "clusterrun.clients.python.workers",
    "launch": "clusterrun.clients.python.launch",
    "spawn": "clusterrun.clients.python.launch",
}
"""Where public names are; those that it does not have are in ``clusterrun.errors``."""


def __getattr__(name: str) -> object:
    if name == "load_ipython_extension":
        # %load_ext clusterrun
        from clusterrun.clients.python.workers import load_ipython_extension

        return load_ipython_extension
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name == "suspend":
        return import_module("clusterrun.suspend")
    return getattr(import_module(_MODULES.get(name, "clusterrun.errors")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
