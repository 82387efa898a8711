"""A slow link that loses packets, without the kernel's netem: a process forwards the frames."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.hosts.host import Host
from tests.hosts.namespaces import NAMESPACES, ip

FORWARD_FRAMES = """
import collections, random, select, socket, sys, time

ETH_P_ALL, SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 3, 263, 15, 23

def port(name):
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    made.bind((name, 0))
    # With this header, a frame may be larger than the MTU, and its checksum incomplete.
    made.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    made.setblocking(False)
    return made

ports = [port(name) for name in sys.argv[1:3]]
*delays, loss = map(float, sys.argv[3:6])
late = [collections.deque(), collections.deque()]
print("open", flush=True)
while True:
    dues = [queue[0][0] for queue in late if queue]
    select.select(ports, [], [], max(0.0, min(dues) - time.monotonic()) if dues else None)
    for source, queue, delay in zip(ports, late, delays):
        try:
            while True:
                frame = source.recv(1 << 17)
                if random.random() >= loss:
                    queue.append((time.monotonic() + delay, frame))
        except OSError:
            pass  # Nothing more has come, or the link is down.
    for target, queue in zip(reversed(ports), late):
        while queue and queue[0][0] <= time.monotonic():
            try:
                target.send(queue.popleft()[1])
            except OSError:
                pass  # As if it were lost.
"""


class SlowLink:
    """The link of a host; each direction has its own delay."""

    def __init__(
        self, host: Host, *, sends: float = 0.0, gets: float = 0.0, loss: float = 0.0
    ) -> None:
        """Nothing changes before it is opened.

        Args:
            host: whose link.
            sends: delay of what it sends, in seconds.
            gets: delay of what it receives.
            loss: the share of the frames that are lost, of each direction.

        """
        self._host = host
        self._near, self._far = f"{host.name}-slow", f"{host.name}-slow-far"
        self._figures = (str(sends), str(gets), str(loss))
        self._process: subprocess.Popen[str] | None = None

    def open(self) -> None:
        """Put the process between the host and the switch; connections stay open."""
        ip(
            *("-n", self._host.switch),
            lines=[
                f"link add {self._near} type veth peer name {self._far}",
                f"link set {self._near} up",
                f"link set {self._far} up",
            ],
        )
        command = (
            sys.executable,
            "-c",
            FORWARD_FRAMES,
            self._host.name,
            self._near,
            *self._figures,
        )
        self._process = subprocess.Popen(
            ["nsenter", f"--net={NAMESPACES / self._host.switch}", *command],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "open\n"
        ip(
            *("-n", self._host.switch),
            lines=[f"link set {self._host.name} nomaster", f"link set {self._far} master br0"],
        )

    def close(self) -> None:
        """Undo it; frames in transit are lost. May be called again."""
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None
        ip(
            *("-n", self._host.switch),
            lines=[f"link delete {self._near}", f"link set {self._host.name} master br0"],
        )


@contextmanager
def slow_link(
    host: Host, *, sends: float = 0.0, gets: float = 0.0, loss: float = 0.0
) -> Iterator[None]:
    """Give a host a slow link until the end of the block; arguments as for ``SlowLink``."""
    link = SlowLink(host, sends=sends, gets=gets, loss=loss)
    link.open()
    try:
        yield
    finally:
        link.close()
