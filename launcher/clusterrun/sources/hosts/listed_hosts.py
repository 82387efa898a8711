"""The hosts of a job where the user lists them: ``--hosts`` or ``--hostfile``."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.hosts.host_lists import expand_hosts
from clusterrun.sources.options.rows.workers import HOSTFILE, HOSTS
from clusterrun.sources.settings import Settings, find

_SLOTS = re.compile(r"slots *= *([0-9]+)")
_OTHER_WORDS = re.compile(r"max[_-]slots *= *[0-9]+")
_COLON = re.compile(r"([^:]+):([0-9]+)")


class Listed(Struct, frozen=True):
    """Hosts by rank."""

    hosts: Fact[tuple[str, ...]]
    slots: Mapping[str, Fact[int]]
    """Workers of the hosts for which the file says a number."""


def find_listed(sources: Sequence[Settings]) -> Listed | None:
    """Return the hosts that are listed; None where none are.

    Raises:
        UsageError: they are listed in two ways, or the list or the file is no good.

    """
    hosts, file = find(HOSTS, sources), find(HOSTFILE, sources)
    if hosts and file:
        raise UsageError(
            f"{hosts.origin} and {file.origin} both list the hosts", "leave one of them out"
        )
    if hosts:
        return Listed(hosts, {})
    return read_hostfile(file) if file else None


def read_hostfile(file: Fact[str]) -> Listed:
    """Return the hosts of a file: plain, as Open MPI has it, or as MPICH has it.

    Raises:
        UsageError: it can't be read, lists nobody, somebody twice, or has a line of another kind.

    """
    try:
        lines = Path(file.value).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(
            f"{file.origin}: {file.value} can't be read: {error.strerror}", "give another path"
        ) from None
    hosts: dict[str, Fact[int] | None] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{file.value}:{number}"
        text = line.partition("#")[0].strip()
        names, slots = _hosts_of_line(Fact(text, where))
        for name in names:
            if name in hosts:
                raise UsageError(
                    f"{where}: {name} is listed twice", "give it once, as HOST slots=N"
                )
            hosts[name] = slots
    if not hosts:
        raise UsageError(f"{file.origin}: {file.value} lists no host", "write one on each line")
    return Listed(
        Fact(tuple(hosts), f"{file.origin} {file.value}"),
        {name: slots for name, slots in hosts.items() if slots},
    )


def _hosts_of_line(line: Fact[str]) -> tuple[tuple[str, ...], Fact[int] | None]:
    name, _, rest = line.value.partition(" ")
    left, slots = _OTHER_WORDS.sub("", rest.strip()).strip(), None
    if found := _SLOTS.fullmatch(left):
        slots, left = found[1], ""
    elif not left and (found := _COLON.fullmatch(name)):
        # But "fd77::1" is an address.
        name, slots = found[1], found[2]
    if left or slots == "0":
        raise UsageError(
            f"{line.origin}: {line.value!r} is not a host with its slots",
            "write HOST, HOST slots=N or HOST:N, with N from 1",
        )
    count = Fact(int(slots), line.origin) if slots else None
    return expand_hosts(Fact(name, line.origin)).value, count
