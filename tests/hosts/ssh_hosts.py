"""Hosts with a real sshd, and another host with their user's ssh client."""

import os
import subprocess
import sys
from pathlib import Path

from tests.hosts.host import NO_HOST, Host
from tests.hosts.namespaces import ip
from tests.hosts.network import Network
from tests.needs import need
from tests.waiting import wait_until

SSHD = "/usr/sbin/sshd"
"""With its path: it executes itself again for each connection."""

# In its own mount namespace: the user's home and login shell differ between hosts.
WITH_ITS_OWN_USERS = 'mount --bind "$0" /etc/passwd && exec "$@"'

OTHER_USER = "other"
OTHER_ID = 54_321
"""Of a user and a group that this machine does not have."""

NEEDED = {Path(path).resolve() for path in (sys.base_prefix, sys.prefix, Path(__file__).parents[2])}
"""What a host's user needs to run a job: the interpreter, its packages, and this checkout."""

# Replaces a folder by one that all users can enter, with only these paths below it.
SHOW_ONLY = """
set -e
aside=$(mktemp -d)
mount --rbind "$0" "$aside"
mount -t tmpfs -o mode=755 none "$0"
for path; do
    mkdir -p "$path"
    mount --rbind "$aside${path#"$0"}" "$path"
done
umount --lazy "$aside"
rmdir "$aside"
"""

SSHD_CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
PasswordAuthentication yes
MaxStartups 100
"""

SSH_CONFIG = """\
Host *
    IdentityFile {folder}/key
    IdentityAgent none
    GlobalKnownHostsFile /dev/null
    UserKnownHostsFile {folder}/known_hosts
"""


class SshHosts:
    """Hosts n0 to n2 with an sshd, n3 without one, and a user on the switch, ``ctl``."""

    def __init__(self, where: Network) -> None:
        self._where = where
        self._folder = where.folder
        self.client = where.switch
        self.hosts = where.hosts
        self.servers = where.hosts[:3]
        self.config = self._folder / "ssh_config"
        self.known_hosts = self._folder / "known_hosts"
        self._daemons: dict[str, int] = {}
        self._hidden: list[list[str]] = []
        self._is_cut = False

    def open(self) -> None:
        """Make keys, start the daemons and wait until they listen."""
        need("ssh", "sshd", "csh", "fish")
        Path("/run/sshd").mkdir(exist_ok=True)
        for name in ("key", "other_key", "host_key"):
            words = ("-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name))
            subprocess.run(["ssh-keygen", *words], check=True, timeout=30)
        for host in self.servers:
            self.folder(host).mkdir()
            (self.folder(host) / "host_key").write_text((self._folder / "host_key").read_text())
            (self.folder(host) / "host_key").chmod(0o600)
            config = self.folder(host) / "sshd_config"
            config.write_text(SSHD_CONFIG.format(folder=self.folder(host)))
            self.restore(host)
            daemon_words = (SSHD, "-D", "-e", "-f", str(config))
            users = str(self.folder(host) / "passwd")
            daemon = host.start("sh", "-c", WITH_ITS_OWN_USERS, users, *daemon_words)
            daemon.wait_for("Server listening", times=2)
            self._daemons[host.name] = daemon.process.pid
        self.restore_client()

    def folder(self, host: Host) -> Path:
        """Return the folder of a host's user: home, keys, and the file with all users."""
        return self._folder / f"user-on-{host.name}"

    def set_shell(self, host: Host, shell: str) -> None:
        """Give the user on a host a login shell."""
        others = [it for it in Path("/etc/passwd").read_text().splitlines() if it[:5] != "root:"]
        root = f"root:x:0:0:root:{self.folder(host)}:{shell}"
        other = f"{OTHER_USER}:x:{OTHER_ID}:{OTHER_ID}::/:{shell}"
        # The file is not replaced: a bind mount shows an inode, not a name.
        (self.folder(host) / "passwd").write_text("\n".join([root, other, *others, ""]))

    def set_start_file(self, host: Host, name: str, text: str) -> None:
        """Give the user on a host a file that the login shell reads when it starts."""
        path = self.folder(host) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def log_in_as_other(self, *hosts: Host) -> None:
        """Have the client log in as another user on ``hosts``, who may run the tests' interpreter."""
        for host in hosts:
            self._open_to_others(host)
        names = " ".join(host.name for host in hosts)
        self.configure(f"Host {names}\n    User {OTHER_USER}\n")

    def _open_to_others(self, host: Host) -> None:
        """Let all users of a host enter what the tests' interpreter and this checkout are in."""
        closed = {
            folder
            for path in NEEDED
            for folder in path.parents
            if not folder.stat().st_mode & 0o001
        }
        for folder in closed - {below for it in closed for below in closed if it in below.parents}:
            needed = [str(path) for path in NEEDED if folder in path.parents]
            words = ("sh", "-c", SHOW_ONLY, str(folder), *needed)
            subprocess.run([*self._inside(host), *words], check=True, timeout=30)
            self._hidden.append([*self._inside(host), "umount", "--recursive", str(folder)])

    def _inside(self, host: Host) -> tuple[str, ...]:
        """Return the words that run a command with the file systems of a host's daemon."""
        return ("nsenter", "--mount", "--target", str(self._daemons[host.name]))

    def restore(self, host: Host) -> None:
        """Undo what tests changed on a host."""
        self.set_shell(host, "/bin/bash")
        for name in (".bashrc", ".cshrc", ".config/fish/config.fish"):
            (self.folder(host) / name).unlink(missing_ok=True)
        keys = (self._folder / "key.pub").read_text()
        (self.folder(host) / "authorized_keys").write_text(keys)

    def restore_client(self) -> None:
        """Restore the client's known host keys and configuration."""
        self.configure("")
        key = (self._folder / "host_key.pub").read_text()
        names = ",".join(f"{host.name},{host.address}" for host in self.servers)
        self.known_hosts.write_text(f"{names} {key}")

    def configure(self, text: str) -> None:
        """Put ``text`` before the rest of the client's ssh_config."""
        self.config.write_text(text + SSH_CONFIG.format(folder=self._folder))

    def change_known_key(self, host: Host) -> None:
        """Give the client a wrong host key of a host."""
        self.restore_client()
        other = (self._folder / "other_key.pub").read_text()
        text = self.known_hosts.read_text().replace(f"{host.name},{host.address}", "elsewhere")
        self.known_hosts.write_text(f"{text}{host.name} {other}")

    def forget_key(self, host: Host) -> None:
        """Remove the host key of a host from the client."""
        text = self.known_hosts.read_text()
        self.known_hosts.write_text(text.replace(f"{host.name},{host.address}", "elsewhere"))

    def refuse_key(self, host: Host) -> None:
        """Have a host refuse the client's key."""
        (self.folder(host) / "authorized_keys").write_text("")

    def hide(self, host: Host, folder: Path) -> None:
        """Hide ``folder`` on a host by an empty one."""
        inside = self._inside(host)
        subprocess.run([*inside, "mount", "-t", "tmpfs", "none", folder.parent], check=True)
        self._hidden.append([*inside, "umount", str(folder.parent)])

    def cut_client(self) -> None:
        """Drop what the client sends by IPv4; the hosts still reach each other."""
        lines = [f"neigh replace {it.address} {NO_HOST} dev br0" for it in self.servers]
        ip("-n", self.client.namespace, lines=lines)
        self._is_cut = True

    def join_client(self) -> None:
        """Undo that."""
        if self._is_cut:
            lines = [f"neigh del {it.address} dev br0" for it in self.servers]
            ip("-n", self.client.namespace, lines=lines)
            self._is_cut = False

    def options(self, hosts: str = "n0,n1,n2") -> tuple[str, ...]:
        """Return the options that start a job on these hosts."""
        return ("--launcher", "ssh", "--hosts", hosts, "--ssh-options", f"-F {self.config}")

    def sessions(self, host: Host) -> list[int]:
        """Return the processes of a host, except the daemon."""
        return [pid for pid in host.processes() if pid != self._daemons.get(host.name)]

    def left(self, seconds: float) -> list[str]:
        """Return what still runs on the hosts after ``seconds``; empty as soon as nothing does."""
        try:
            wait_until(lambda: not self._sessions(), "nothing on any host", seconds)
        except AssertionError:
            return [f"{pid}: {_command(pid)}" for pid in self._sessions()]
        return []

    def end_sessions(self) -> None:
        """Kill what a test has left, and undo what it changed."""
        self._where.restore()
        self.join_client()
        for pid in [*self._sessions(), *self.client.processes()]:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        self.left(10)
        while self._hidden:
            subprocess.run(self._hidden.pop(), check=True, timeout=30)
        for host in self.servers:
            self.restore(host)
        self.restore_client()

    def _sessions(self) -> list[int]:
        return [pid for host in self.hosts for pid in self.sessions(host)]


def _command(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except FileNotFoundError:
        return "ended meanwhile"
