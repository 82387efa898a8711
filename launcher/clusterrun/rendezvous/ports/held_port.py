"""The port where an attempt's workers meet: found free, and held until they listen there."""

import errno
import socket

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.errors import RendezvousError
from clusterrun.rendezvous.ports.port_owner import owner_of_port


class HeldPort(Struct, frozen=True):
    """A TCP port that the kernel gives to nobody who doesn't ask for it by number.

    A bound socket that does not listen keeps the port from being chosen for others, here and by
    any program that binds to port 0; with SO_REUSEADDR on both sides torch's store can still
    listen there (``inet_csk_bind_conflict`` in the kernel's net/ipv4/inet_connection_sock.c).
    """

    number: int
    holder: socket.socket
    given: bool = False
    """The user has named it: every attempt's workers meet there."""

    def release(self) -> None:
        """Let go of the port."""
        self.holder.close()


def hold_free_port() -> HeldPort:
    """Return a port that nobody uses now; any number of jobs on this machine get different ones."""
    return _hold(0)


def hold_port(port: Fact[int]) -> HeldPort:
    """Return the port that the user has named.

    Raises:
        RendezvousError: somebody listens there already.

    """
    try:
        return _hold(port.value, given=True)
    except OSError as error:
        raise RendezvousError(
            f"port {port.value} ({port.origin}) can't be used on this machine:"
            f" {_why(port.value, error)}",
            "End the program that listens there, name another port, or leave --master-port out:\n"
            "on one machine, or beside --rdzv-endpoint, a free port is chosen.",
        ) from error


def _why(number: int, error: OSError) -> str:
    if error.errno != errno.EADDRINUSE:
        return error.strerror or str(error)
    return f"{owner_of_port(number)} has it"


def _hold(number: int, *, given: bool = False) -> HeldPort:
    holder = bound_everywhere(number)
    return HeldPort(holder.getsockname()[1], holder, given)


def bound_everywhere(number: int) -> socket.socket:
    """Return a socket on the wildcard address of both families, with SO_REUSEADDR.

    Raises:
        OSError: somebody listens on port ``number``, or it is not for us.

    """
    # What listens on the wildcard of either family needs the number in both.
    everywhere = ("", number)
    holder = bound_at(socket.AF_INET6, everywhere) or bound_at(socket.AF_INET, everywhere)
    if holder is None:
        raise OSError(errno.EADDRNOTAVAIL, "no address to bind to")
    return holder


def bound_at(
    family: int, where: tuple[str, int] | tuple[str, int, int, int]
) -> socket.socket | None:
    """Return a socket at an address, with SO_REUSEADDR; None where there is no such address.

    Raises:
        OSError: somebody listens there, or it is not for us.

    """
    try:
        holder = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Both families at once, as torch's store listens.
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(where)
    except OSError as error:
        holder.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return holder
