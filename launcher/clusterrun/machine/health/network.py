"""Checks of names and interfaces: the commonest cause of nodes that do not find each other."""

from collections.abc import Iterator, Mapping, Sequence

from clusterrun.machine.health.finding import Finding, failure, warning, well

LOOPBACK = ("127.", "::1")

BY_PREFIX = ("NCCL_SOCKET_IFNAME",)
"""A name there means all interfaces that begin with it; "=" before it: that one; "^": all others."""

EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def check_name(
    host: str, addresses: Sequence[str] | None, own: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    """Check what the name of this host leads to.

    Args:
        host: the name.
        addresses: what it resolves to; None: the name server does not answer.
        own: the addresses of each interface.

    """
    what = f"host name ({host})"
    all_own = {address for known in own.values() for address in known}
    if addresses is None:
        yield failure(what, "the name server does not answer", "check /etc/resolv.conf")
    elif not addresses:
        advice = f"add '{_first(own)} {host}' to /etc/hosts, or give --master-addr an address"
        yield warning(what, "does not resolve", advice)
    elif all(address.startswith(LOOPBACK) for address in addresses):
        advice = "other nodes can't use it: clusterrun sets *_SOCKET_IFNAME; or correct /etc/hosts"
        yield warning(what, f"only {', '.join(addresses)}", advice)
    elif not all_own.intersection(addresses):
        advice = f"no interface has it: correct /etc/hosts or DNS; this machine has {_first(own)}"
        yield failure(what, ", ".join(addresses), advice)
    else:
        yield well(what, ", ".join(addresses))


def check_interfaces(variables: Mapping[str, str], names: Sequence[str]) -> Iterator[Finding]:
    """Check that the interfaces that variables name exist."""
    for variable in (*BY_PREFIX, *EXACT):
        value = variables.get(variable, "")
        if not value:
            continue
        usable = usable_interfaces(value, names, by_prefix=variable in BY_PREFIX)
        if usable:
            yield well(variable, f"{value}: {', '.join(usable)}")
        else:
            advice = f"no interface has that name: unset it, or give one of {', '.join(names)}"
            yield failure(variable, value, advice)


def usable_interfaces(value: str, names: Sequence[str], *, by_prefix: bool) -> list[str]:
    """Return those of ``names`` that a variable's value leaves, in their order."""
    kind, rest = (value[0], value[1:]) if by_prefix and value[:1] in {"^", "="} else ("", value)
    wanted = [part for part in rest.split(",") if part]
    if by_prefix and kind != "=":
        found = [name for name in names if name.startswith(tuple(wanted))]
    else:
        found = [name for name in names if name in wanted]
    return [name for name in names if name not in found] if kind == "^" else found


def _first(own: Mapping[str, Sequence[str]]) -> str:
    """Return an address of this machine that other machines may know."""
    outside = (each for known in own.values() for each in known if not each.startswith(LOOPBACK))
    return next(outside, "ADDRESS")
