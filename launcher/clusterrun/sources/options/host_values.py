"""From text to value: hosts and devices."""

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.options.values import UnreadableError

_MOST_DEVICES = 10_000
"""A range up to a larger number is a typing error, and would take long to write out."""


def hosts(text: str) -> tuple[str, ...]:
    """Read host names and addresses, with ranges: ``a,b[1-3]``."""
    from clusterrun.sources.hosts.host_lists import expand_hosts

    hint = "write it as in gpu[01-04,7],login"
    try:
        found = expand_hosts(Fact(text.replace(" ", ""), "")).value
    except UsageError:
        raise UnreadableError(f"{text!r} is not a list of hosts", hint) from None
    if not all(found):
        raise UnreadableError(f"{text!r} is not a list of hosts", hint)
    twice = next((host for host in found if found.count(host) > 1), "")
    if twice:
        raise UnreadableError(f"{text!r} has {twice} twice", "give each host once")
    return found


def devices(text: str) -> tuple[str, ...]:
    """Read numbers of devices and ranges of them, or UUIDs, in the order of the workers."""
    found: list[str] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if dash and first.isdecimal() and last.isdecimal() and int(last) < _MOST_DEVICES:
            found += map(str, range(int(first), int(last) + 1))
        elif part.strip().isdecimal() or part.strip().startswith(("GPU-", "MIG-")):
            found.append(part.strip())
        else:
            found = []
            break
    if not found or len(set(found)) < len(found):
        wrong = "has a device twice" if found else "is not a list of devices"
        raise UnreadableError(f"{text!r} {wrong}", "give each device once, such as 0,2,5-7")
    return tuple(found)


def base_port(text: str) -> int:
    """Read the first of several ports."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 65_000):
        raise UnreadableError(f"{text!r} is not a port", "give a number from 1 to 64999")
    return int(text)
