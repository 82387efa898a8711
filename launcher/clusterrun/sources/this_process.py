"""What a job takes from the process that describes it."""

import os
import sys
import time
from collections.abc import Callable, Collection

from msgspec import Struct


def _addresses_of(name: str) -> Collection[str]:
    # Few jobs ask.
    from clusterrun.sources.hosts.own_host import addresses_of

    return addresses_of(name)


class ThisProcess(Struct, frozen=True):
    """Where this process runs, and the defaults that come from it."""

    host: str
    """The host's name, as the kernel has it."""
    cpus: int
    """The number of CPUs that the process may use."""
    python: str
    """The interpreter for the workers."""
    run_id: str
    """A name for the run, which no other process of this host has at the same time."""
    has_terminal: bool = False
    """Standard output and standard error are a terminal."""
    called: str = "clusterrun"
    """The name of the command; as ``torchrun``, every default is torchrun's."""
    user_id: int = 0
    addresses: Callable[[str], Collection[str]] = _addresses_of
    """The addresses of a host by its name; this host's for ""."""


def this_process(called: str) -> ThisProcess:
    return ThisProcess(
        host=os.uname().nodename,
        cpus=len(os.sched_getaffinity(0)),
        python=sys.executable,
        # Sorts by time.
        run_id=f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}",
        has_terminal=os.isatty(1) and os.isatty(2),
        called=called,
        user_id=os.getuid(),
    )
