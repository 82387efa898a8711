"""IP addresses of host names, of sockets, and of this machine's network interfaces."""

import socket
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from clusterrun.job.values import is_loopback

_MAPPED = "::ffff:"
"""Prefix of an IPv4 address on a dual-stack socket."""

Resolve = Callable[[str], "tuple[Address, ...]"]
"""Returns the addresses of a name."""

Interfaces = Mapping[str, tuple[str, ...]]
"""The addresses of each network interface as text without a scope, by interface name."""


class Address(Struct, frozen=True):
    """One address of a host."""

    family: int
    text: str
    scope: int
    """The number of the interface of a link-local IPv6 address, else 0."""

    @property
    def host(self) -> str:
        """The address as text, for example "fe80::1%eth0" if it is link-local."""
        return f"{self.text}%{socket.if_indextoname(self.scope)}" if self.scope else self.text

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.text)

    def at(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        """Return the argument for ``connect`` and ``bind``."""
        if self.family == socket.AF_INET6:
            return self.text, port, 0, self.scope
        return self.text, port


def numeric_address(host: str) -> tuple[Address, ...]:
    """Return the address that ``host`` spells out; () if ``host`` is a name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        return ()
    return _addresses(found)


def all_addresses(host: str) -> tuple[Address, ...]:
    """Return the addresses of ``host`` in the resolver's order; may block for minutes.

    Raises:
        socket.gaierror: the name is unknown, or no name server answered.

    """
    return _addresses(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))


def _addresses(
    found: Iterable[tuple[int, int, int, str, tuple[str | int | bytes, ...]]],
) -> tuple[Address, ...]:
    addresses = [
        Address(int(family), str(sockname[0]), int(sockname[3]) if len(sockname) == 4 else 0)
        for family, _, _, _, sockname in found
        if family in {socket.AF_INET, socket.AF_INET6}
    ]
    return tuple(dict.fromkeys(addresses))


def loopback_address(host: str) -> tuple[Address, ...]:
    """Return the loopback address that ``host`` spells out; () for other addresses and for names.

    ``localhost`` counts as a name: Kubeflow's operators give node 0 that name and give its real name
    to the other nodes, which run on other machines.
    """
    return tuple(address for address in numeric_address(host) if address.is_loopback)


def plain_address(text: str) -> str:
    """Return an address without its scope; an IPv4-mapped one as IPv4."""
    text, _, _ = text.partition("%")
    return text.removeprefix(_MAPPED) if "." in text else text


def own_interfaces() -> Interfaces:
    """Return the current addresses of this machine."""
    import psutil

    families = {socket.AF_INET, socket.AF_INET6}
    return {
        name: tuple(plain_address(entry.address) for entry in entries if entry.family in families)
        for name, entries in psutil.net_if_addrs().items()
    }


def is_own(address: str, interfaces: Interfaces) -> bool:
    """Return whether ``address`` reaches this machine and no other.

    kube-proxy's interface has the addresses of Kubernetes services, which route to other machines.
    """
    owner = interface_of(address, interfaces)
    return is_loopback(address) or (owner is not None and not owner.startswith("kube-ipvs"))


def interface_of(address: str, interfaces: Interfaces) -> str | None:
    """Return the name of the interface that has ``address``."""
    plain = plain_address(address)
    return next((name for name, found in interfaces.items() if plain in found), None)
