"""IP addresses: as sockets tell them, which are ours, and by which interface."""

import socket
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

_MAPPED = "::ffff:"
"""How a socket of both families writes an IPv4 address."""

Resolve = Callable[[str], "tuple[Address, ...]"]
"""Finds the addresses of a name."""

Interfaces = Mapping[str, tuple[str, ...]]
"""The plain addresses of each interface, by its name."""


class Address(Struct, frozen=True):
    """One address of a host."""

    family: int
    text: str
    scope: int
    """The interface of a link-local IPv6 address by number, else 0."""

    @property
    def is_loopback(self) -> bool:
        """Whether it is every machine's own."""
        return self.text == "::1" or self.text.startswith("127.")

    def at(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        """Return what ``connect`` takes."""
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
    """Return the addresses of ``host`` as the resolver orders them; may block for long.

    Raises:
        socket.gaierror: nobody knows such a name, or nobody could be asked.

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

    Not for ``localhost``: Kubeflow's operators have told that to node 0, and its name to the
    others, which are elsewhere.
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


def is_own(address: Address, interfaces: Interfaces) -> bool:
    """Tell whether ``address`` is one of this machine's."""
    return address.is_loopback or interface_of(address.text, interfaces) != ""


def interface_of(address: str, interfaces: Interfaces) -> str:
    """Return the interface that has the plain ``address``; "" if none has."""
    wanted = plain_address((address,))
    return next((name for name, found in interfaces.items() if wanted in found), "")
