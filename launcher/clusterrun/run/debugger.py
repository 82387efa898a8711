"""Lets the debugger that this process runs under follow into the workers.

It is pydevd: the debugger of VS Code, of PyCharm and of ``python -m debugpy``. It replaces the functions of
``os`` that start processes with ones that add it to the command of each Python. Workers are started by the
fork server, into which it does not follow, so its function that edits a command is called here.
"""

import os
import sys
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from clusterrun.planning.plan import NodePlan
from clusterrun.planning.preparation import Preparation
from clusterrun.processes import python_options
from clusterrun.workers.fork_server_client import ForkServer

MONKEY = "_pydev_bundle.pydev_monkey"
"""The module of pydevd that replaces functions of ``os``."""


class NotAttached(Exception):
    """pydevd can't be put into a command; the text says why."""


def follow_workers(
    server: ForkServer, plan: NodePlan, preparation: Preparation | None
) -> Preparation | None:
    """Have the fork server start workers with commands that the debugger has edited.

    If that is impossible, workers are started without the debugger, and a notice says so once.

    Args:
        server: the fork server.
        plan: a plan made before the nodes have joined.
        preparation: what the fork server would prepare without a debugger.

    Returns:
        What the fork server is to prepare. Only workers that must be forked are not executed.

    """
    first = plan.workers[0]
    if not (first.runs_python and _follows_children()):
        return preparation
    attached = _Attached(server.notice)
    command = attached(first.command)
    if attached.is_impossible:
        return preparation
    server.debugger_command = attached
    if preparation is None:
        return None
    if preparation.workers > 1:
        server.notice(
            "each worker imports everything itself, because a debugger follows the workers"
        )
    return replace(preparation, command=command) if preparation.must_fork else None


def _follows_children() -> bool:
    """Return whether pydevd is loaded and set to follow into child processes.

    If that is switched off, PyCharm replaces the functions of ``os`` by ones that only warn, and VS Code
    leaves them.
    """
    return "pydevd" in sys.modules and "warn" not in getattr(os.fork, "__name__", "")


class _Attached:
    """Edits workers' commands with ``attached``; leaves them unchanged if that is impossible."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.is_impossible = False
        self._say = say

    def __call__(self, command: Sequence[str]) -> tuple[str, ...]:
        try:
            return attached(command)
        except NotAttached as error:
            if not self.is_impossible:
                self._say(f"the debugger does not follow the workers: {error}")
            self.is_impossible = True
            return tuple(command)


def attached(command: Sequence[str]) -> tuple[str, ...]:
    """Return ``command``, Python with a script or with ``-m``, as pydevd edits it.

    Raises:
        NotAttached: this version of pydevd lacks the function, or it behaves differently.

    """
    patch_args = getattr(sys.modules.get(MONKEY), "patch_args", None)
    if patch_args is None:
        raise NotAttached("this version of pydevd has no patch_args")
    try:
        words = patch_args([*command])
    except Exception as error:
        raise NotAttached(f"patch_args of pydevd: {type(error).__name__}: {error}") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise NotAttached(f"patch_args of pydevd returns {words!r:.100}")
    if words == [*command]:
        # For example for a script that is read from standard input.
        raise NotAttached(f"pydevd does not follow into {' '.join(words):.100}")
    if words[:2] != [*command[:2]] or len(words) <= len(command):
        raise NotAttached(f"patch_args of pydevd returns {' '.join(words):.100}")
    python, options, *rest = words
    return (python, python_options(options), *rest)
