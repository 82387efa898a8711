"""What no source of a job tells, but the process itself."""

from collections.abc import Callable, Collection

from msgspec import Struct


def _addresses_of(name: str) -> Collection[str]:
    # Few jobs ask.
    from clusterrun.sources.hosts.own_host import addresses_of

    return addresses_of(name)


class ThisProcess(Struct, frozen=True):
    """Where it runs, and what it does where nothing is said."""

    host: str
    """Its host's name, as the kernel has it."""
    cpus: int
    """How many CPUs it may use."""
    python: str
    """The interpreter for the workers."""
    run_id: str
    """A name for the run, that no other process of this host has at the same time."""
    has_terminal: bool = False
    """What it prints goes to a terminal, on standard output and standard error."""
    called: str = "clusterrun"
    """The name of the command; as ``torchrun``, every default is torchrun's."""
    user_id: int = 0
    """Who runs it."""
    addresses: Callable[[str], Collection[str]] = _addresses_of
    """The addresses of a host by its name; its own for ""."""
