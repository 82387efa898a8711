"""Addresses of names, sockets and interfaces."""

import socket

import pytest
from clusterrun.network.addresses import (
    Address,
    interface_of,
    is_own,
    numeric_address,
    own_interfaces,
    plain_address,
)

INTERFACES = {"lo": ("127.0.0.1", "::1"), "eth0": ("10.0.0.1", "10.0.0.2", "fe80::1")}


@pytest.mark.parametrize(
    ("host", "family", "text"),
    [
        ("10.0.0.1", socket.AF_INET, "10.0.0.1"),
        ("::1", socket.AF_INET6, "::1"),
        ("2001:DB8::0:1", socket.AF_INET6, "2001:db8::1"),
    ],
)
def test_numeric_address_is_parsed_without_lookup(
    host: str, family: socket.AddressFamily, text: str
) -> None:
    (address,) = numeric_address(host)

    assert (address.family, address.text, address.scope) == (family, text, 0)


@pytest.mark.parametrize("host", ["n0", "10.0.0.1.example", "localhost", "x" * 300, "a..b"])
def test_name_is_not_a_numeric_address(host: str) -> None:
    assert numeric_address(host) == ()


def test_socket_address_of_ipv6_has_scope() -> None:
    assert Address(socket.AF_INET, "10.0.0.1", 0).at(80) == ("10.0.0.1", 80)
    assert Address(socket.AF_INET6, "fe80::1", 2).at(80) == ("fe80::1", 80, 0, 2)


def test_host_of_link_local_address_has_zone() -> None:
    """Libraries of workers need the zone."""
    (number, name), *_ = socket.if_nameindex()

    assert Address(socket.AF_INET6, "fe80::1", number).host == f"fe80::1%{name}"
    assert Address(socket.AF_INET, "10.0.0.1", 0).host == "10.0.0.1"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::1", "::1"),
    ],
)
def test_plain_address_has_no_scope_and_no_ipv4_mapping(text: str, plain: str) -> None:
    assert plain_address(text) == plain


@pytest.mark.parametrize(
    ("text", "interface", "own"),
    [
        ("10.0.0.2", "eth0", True),
        ("fe80::1", "eth0", True),
        ("127.0.0.1", "lo", True),
        ("127.0.1.1", None, True),
        ("10.0.0.3", None, False),
    ],
)
def test_interface_of_address(text: str, interface: str | None, own: bool) -> None:
    """Loopback addresses belong to every machine."""
    assert interface_of(text, INTERFACES) == interface
    assert is_own(text, INTERFACES) is own


def test_address_of_kubernetes_service_is_not_own() -> None:
    """kube-proxy assigns the addresses of all services to an interface of each machine."""
    assert not is_own("10.96.0.5", {"kube-ipvs0": ("10.96.0.5",)})


def test_own_interfaces_include_loopback() -> None:
    assert interface_of("127.0.0.1", own_interfaces()) == "lo"
