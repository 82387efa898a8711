"""One of several hosts on this machine: a network namespace, a host name and a hosts file."""

import itertools
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.contract.launched import MARK, Ended, Job, plain_environment
from tests.hosts.namespaces import NAMESPACES, end_processes, ip, processes_in
from tests.waiting import SECONDS_TO_ACT

PIPE_SIZE = 1 << 20
"""Bytes that a job may print while its test waits for another one."""

NAMES_FROM_FILES = "passwd: files\ngroup: files\nhosts: files\n"
"""No name server: names are only resolved by the hosts file."""

NO_HOST = "lladdr 02:00:00:00:00:99 nud permanent"
"""A permanent neighbour entry with the hardware address of no host."""

# Not `ip netns exec`: it mounts a /sys without cgroups, and slurmd does not start on that.
BECOME_HOST = """
set -e
hostname "$0"
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
shift
exec "$@"
"""


class Host:
    """A machine with a name, two addresses, a link to the switch and its own /etc/hosts.

    It shares the file system, the CPUs and the process ids of this machine.
    """

    def __init__(self, name: str, number: int, namespace: str, switch: str, folder: Path) -> None:
        """Create a host; the network sets it up.

        Args:
            name: the host's own name; a word.
            number: of the host in its network, from 1; the last part of its addresses.
            namespace: what iproute2 calls the host.
            switch: what iproute2 calls the host that the links lead to.
            folder: for files of this host only; created here.

        """
        folder.mkdir(parents=True)
        (folder / "nsswitch.conf").write_text(NAMES_FROM_FILES)
        self.name = name
        self.address = f"10.77.0.{number}"
        self.address6 = f"fd77::{number}"
        self.namespace = namespace
        self.switch = switch
        self._folder = folder
        self._jobs: list[Job] = []
        self._numbers = itertools.count()

    def __repr__(self) -> str:
        return f"{self.name}({self.address})"

    @property
    def around(self) -> tuple[str, ...]:
        """The words before a command that run it on this host.

        They keep the process id, and also serve as the ``around`` of a ``Launcher``.
        """
        enter = ("nsenter", f"--net={NAMESPACES / self.namespace}")
        become = ("unshare", "--mount", "--uts", "sh", "-c", BECOME_HOST)
        return (*enter, *become, self.name, str(self._folder))

    def start(
        self, *words: str, environ: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> Job:
        """Start a command on this host; it ends with the test at the latest.

        Args:
            words: the command and its arguments.
            environ: variables on top of the tests' own.
            folder: where it runs; None for where the tests do.

        """
        mark = f"{os.getpid()}-{self.namespace}-{next(self._numbers)}"
        process = subprocess.Popen(
            [*self.around, *words],
            cwd=folder,
            env={**plain_environment(), MARK: mark, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pipesize=PIPE_SIZE,
            start_new_session=True,
        )
        self._jobs.append(Job(process, mark))
        return self._jobs[-1]

    def run(
        self,
        *words: str,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
        seconds: float = SECONDS_TO_ACT,
    ) -> Ended:
        """Run a command on this host to its end; arguments as for ``start``.

        Raises:
            AssertionError: it, or what holds its output open, still runs after ``seconds``.

        """
        return self.start(*words, environ=environ, folder=folder).ended(seconds)

    def processes(self) -> list[int]:
        """Return the ids of all processes on this host."""
        return processes_in(self.namespace)

    def cut(self) -> None:
        """Take the link down: packets are lost, and neither side gets an error."""
        # At the switch: with the host's own end down, its sends would fail at once, and it would
        # lose its IPv6 address.
        ip("-n", self.switch, "link", "set", self.name, "down")

    def join(self) -> None:
        """Bring the link up again."""
        ip("-n", self.switch, "link", "set", self.name, "up")

    def mute(self, peers: Sequence["Host"]) -> None:
        """Drop what this host sends to ``peers``, but not what they send to it."""
        lines = [f"neigh replace {it.address} {NO_HOST} dev eth0" for it in peers]
        ip("-n", self.namespace, lines=lines)

    def unmute(self, peers: Sequence["Host"]) -> None:
        """Undo ``mute``; may be called again."""
        lines = [f"neigh flush to {it.address} dev eth0 nud permanent" for it in peers]
        ip("-n", self.namespace, lines=lines)

    def set_hosts_file(self, text: str) -> None:
        """Change /etc/hosts, also for running processes."""
        # The file is not replaced: a bind mount shows an inode, not a name.
        (self._folder / "hosts").write_text(text)

    def end_all(self) -> None:
        """End all processes on this host."""
        end_processes(self.namespace)
        for job in self._jobs:
            job.kill_all()
        self._jobs.clear()
