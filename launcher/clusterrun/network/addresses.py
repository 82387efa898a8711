"""IP addresses: of names, of sockets, and of this machine's network interfaces."""

import socket
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from clusterrun.job.values import is_loopback

_MAPPED = "::ffff:"
"""Prefix of an IPv4 address on a socket of both families."""

Resolve = Callable[[str], "tuple[Address, ...]"]
"""Returns the addresses of a name."""

Interfaces = Mapping[str, tuple[str, ...]]
"""The plain addresses of each network interface, by its name."""


class Address(Struct, frozen=True):
    """One address of a host."""

    family: int
    text: str
    scope: int
    """The number of the interface of a link-local IPv6 address, else 0."""

    @property
    def host(self) -> str:
        """It as a host, a link-local one with the zone that leads there from this machine."""
        return f"{self.text}%{socket.if_indextoname(self.scope)}" if self.scope else self.text

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.text)

    def at(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        """Return what ``connect`` and ``bind`` take."""
        if self.family == socket.AF_INET6:
            return self.text, port, 0, self.scope
        return self.text, port


def numeric_address(host: str) -> tuple[Address, ...]:
    """Return the address that ``host`` is, as text; () if it is a name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        return ()
    return _addresses(found)


def all_addresses(host: str) -> tuple[Address, ...]:
    """Return the addresses of ``host`` in the resolver's order; may block for minutes.

    Raises:
        socket.gaierror: the name is unknown, or no name server has answered.

    """
    return _addresses(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))


def _addresses(
    found: Iterable[tuple[int, int, int, str, tuple[str | int | bytes, ...]]],
) -> tuple[Address, ...]:
    addresses = [
        Address(int(family), str(where[0]), int(where[3]) if len(where) == 4 else 0)
        for family, _, _, _, where in found
        if family in {socket.AF_INET, socket.AF_INET6}
    ]
    return tuple(dict.fromkeys(addresses))


def loopback_address(host: str) -> tuple[Address, ...]:
    """Return the loopback address that ``host`` is, as text; () if it is another, or a name.

    Not for ``localhost``: Kubeflow's operators give node 0 that name, and its real one to the
    other nodes, which run on other machines.
    """
    return tuple(address for address in numeric_address(host) if address.is_loopback)


def plain_address(where: object) -> str:
    """Return the address of a socket's name without scope, IPv4 as IPv4; "" for other sockets."""
    if not isinstance(where, tuple):
        return ""
    text, _, _ = str(where[0]).partition("%")
    return text.removeprefix(_MAPPED) if "." in text else text


def own_interfaces() -> Interfaces:
    """Return the addresses that this machine has now."""
    import psutil

    families = {socket.AF_INET, socket.AF_INET6}
    return {
        name: tuple(
            plain_address((entry.address,)) for entry in entries if entry.family in families
        )
        for name, entries in psutil.net_if_addrs().items()
    }


def is_own(address: str, interfaces: Interfaces) -> bool:
    """Return whether a plain address belongs to this machine, and leads to it alone.

    An interface of kube-proxy has the addresses of Kubernetes' services, which lead elsewhere.
    """
    owner = interface_of(address, interfaces)
    return is_loopback(address) or (owner != "" and not owner.startswith("kube-ipvs"))


def interface_of(address: str, interfaces: Interfaces) -> str:
    """Return the interface with the plain ``address``; "" if none has it."""
    wanted = plain_address((address,))
    return next((name for name, found in interfaces.items() if wanted in found), "")
