"""Read hosts, endpoints and devices."""

from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.options.values.numbers import whole_number

MOST_DEVICES = 10_000
"""A larger number is a typing error, and its range would take long to write out."""


def address(text: str) -> str:
    """Read a host name or an IP address, without a port; the brackets of an IPv6 address go."""
    try:
        found = Endpoint.parse(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a host", "give a host name or an IP address") from None
    if found.port is not None:
        raise UsageError(
            f"{text!r} has a port in it",
            f"give {found.host} here, and --master-port {found.port}",
        )
    return found.host


def endpoint(text: str) -> str:
    try:
        return str(Endpoint.parse(text))
    except ValueError:
        raise UsageError(
            f"{text!r} is not an endpoint", "give HOST, HOST:PORT or [IPV6]:PORT"
        ) from None


def hosts(text: str) -> tuple[str, ...]:
    """Read host names and addresses, with ranges: ``a,b[1-3]``."""
    from clusterrun.sources.hosts.host_lists import expand_hosts

    hint = "write it as in gpu[01-04,7],login"
    try:
        found = expand_hosts(Fact(text.replace(" ", ""), "")).value
    except UsageError:
        raise UsageError(f"{text!r} is not a list of hosts", hint) from None
    if not all(found):
        raise UsageError(f"{text!r} is not a list of hosts", hint)
    twice = next((host for host in found if found.count(host) > 1), "")
    if twice:
        raise UsageError(f"{text!r} has {twice} twice", "give each host once")
    return found


def devices(text: str) -> tuple[str, ...]:
    """Read numbers of devices and ranges of them, or UUIDs, in the order of the workers."""
    hint = "give each device once, such as 0,2,5-7"
    found = [device for part in text.split(",") for device in _device_range(part.strip())]
    if not all(found):
        raise UsageError(f"{text!r} is not a list of devices", hint)
    if len(set(found)) < len(found):
        raise UsageError(f"{text!r} has a device twice", hint)
    return tuple(found)


def _device_range(text: str) -> list[str]:
    """Return the devices that one part of the list names; one empty name if it names none."""
    first, dash, last = text.partition("-")
    low, high = whole_number(first), whole_number(last)
    if text.startswith(("GPU-", "MIG-")) or (low is not None and not dash):
        return [text]
    if low is None or high is None or low > high or high >= MOST_DEVICES:
        return [""]
    return [str(number) for number in range(low, high + 1)]
