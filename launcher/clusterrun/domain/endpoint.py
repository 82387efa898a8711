"""A host with or without a port: ``HOST``, ``HOST:PORT``, ``[::1]:29500``."""

from typing import Self

from msgspec import Struct


class Endpoint(Struct, frozen=True):
    """A host, and a port if one is given."""

    host: str
    """Without brackets."""
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``HOST``, ``HOST:PORT``, an IPv6 address, or one in brackets with or without a port.

        Raises:
            ValueError: it is none of these.

        """
        host, port = _split(text)
        if not host or not host.isprintable() or any(sign in " []/" for sign in host):
            raise ValueError(text)
        if not port:
            return cls(host, None)
        digits = port.removeprefix(":")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 6) or int(digits) > 65535:
            raise ValueError(text)
        return cls(host, int(digits))

    def __str__(self) -> str:
        """Return "HOST", "HOST:PORT" or "[IPV6]:PORT"."""
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(address: str) -> bool:
    """Return whether an IP address, as text, leads to the machine itself."""
    return address == "::1" or address.startswith("127.")


def _split(text: str) -> tuple[str, str]:
    """Return the host, and the rest from the colon on."""
    if text.startswith("["):
        host, end, port = text[1:].partition("]")
        # Without the closing bracket, or a colon after it, the rest is not a port.
        return host, port if end and port[:1] in {"", ":"} else ":?"
    if text.count(":") > 1:
        return text, ""
    host, colon, port = text.partition(":")
    return host, colon + port
