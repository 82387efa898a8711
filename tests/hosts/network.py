"""Several hosts on this machine with a switch between them.

The switch is a bridge in its own namespace. So it is invisible on this machine, test runs are
separate, and packet filters of this machine do not apply (Docker's drops bridged packets).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.hosts.host import Host
from tests.hosts.namespaces import PREFIX, folder_of, ip, remove_folder, remove_namespace


class Network:
    """Hosts around a switch, which is also a host: ``ctl``, with its own address."""

    def __init__(self, run: str, label: str, names: Sequence[str]) -> None:
        self.folder = folder_of(run) / label
        prefix = f"{PREFIX}{run}-{label}"
        self.switch, *hosts = (
            Host(name, number, f"{prefix}-{name}", f"{prefix}-ctl", self.folder / name)
            for number, name in enumerate(["ctl", *names], start=1)
        )
        self.hosts = tuple(hosts)

    def open(self) -> None:
        """Create the namespaces and connect them."""
        all_hosts = (self.switch, *self.hosts)
        ip(lines=[f"netns add {host.namespace}" for host in all_hosts])
        ip("-n", self.switch.namespace, lines=self._switch_and_links())
        ip("-n", self.switch.namespace, lines=_address(self.switch, "br0"))
        for host in self.hosts:
            ip("-n", host.namespace, lines=_address(host, "eth0"))
        self.restore()

    def restore(self) -> None:
        """Undo what tests did: restore all links and hosts files."""
        all_hosts = (self.switch, *self.hosts)
        # One address each: with two, the slower of two answers decides which of them workers get.
        names = [f"{it.address} {it.name}" for it in all_hosts]
        for host in all_hosts:
            host.set_hosts_file("\n".join(["127.0.0.1 localhost", "::1 localhost", *names, ""]))
        ip("-n", self.switch.namespace, lines=[f"link set {it.name} up" for it in self.hosts])

    def end_all(self) -> None:
        for host in (*self.hosts, self.switch):
            host.end_all()

    def close(self) -> None:
        """End all processes on all hosts, and remove the hosts."""
        self.end_all()
        for host in (*self.hosts, self.switch):
            remove_namespace(host.namespace)
        remove_folder(self.folder)

    def _switch_and_links(self) -> list[str]:
        links = [
            f"link add {host.name} type veth peer name eth0 netns {host.namespace}"
            for host in self.hosts
        ]
        ports = [f"link set {host.name} master br0" for host in self.hosts]
        # Snooping may swallow IPv6's neighbour discovery for a moment.
        return ["link add br0 type bridge mcast_snooping 0", *links, *ports]


@contextmanager
def network(run: str, label: str, *names: str) -> Iterator[Network]:
    """Return a network; it and all its processes end with the block.

    Args:
        run: the name of this test run, from ``run_of``.
        label: a word that is unique among the networks of the run.
        names: of the hosts.

    """
    made = Network(run, label, names)
    try:
        made.open()
        yield made
    finally:
        made.close()


def _address(host: Host, interface: str) -> list[str]:
    # nodad: an IPv6 address is of no use during the seconds of duplicate detection.
    return [
        "link set lo up",
        f"address add {host.address}/24 dev {interface}",
        f"address add {host.address6}/64 dev {interface} nodad",
        f"link set {interface} up",
    ]
