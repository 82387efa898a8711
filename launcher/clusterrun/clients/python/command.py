"""The ordinary command as a child of a Python program, and the connections of its ranks."""

import os
import pickle
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from msgspec.structs import replace

from clusterrun.clients.python import wire
from clusterrun.clients.python.output import JobStreams
from clusterrun.errors import UsageError
from clusterrun.job.sources import CALLER_VARIABLE
from clusterrun.policy.end_report import (
    LONGEST,
    SHOW_OUTPUT,
    EndReport,
    output_shown_line,
    parse_report,
)
from clusterrun.processes import python_options

RANK_PROGRAM = Path(__file__).with_name("rank.py")

CALLS_VARIABLE = "_CLUSTERRUN_CALLS"
"""Where ranks dial, and the key of their group: no other user can read a process's variables."""

PACKAGES = str(Path(__file__).parents[3])
"""Where clusterrun is: the caller may have put it on its import path by itself."""

PROGRAM = f"""
import signal, sys
sys.path[:0] = () if {PACKAGES!r} in sys.path else ({PACKAGES!r},)
sys.argv[0] = "clusterrun"
from clusterrun.cli.entry import main, prepare_process
prepare_process()
if {{}}:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {{{{signal.SIGINT}}}})
sys.exit(main())
"""
"""What the command's interpreter runs; whether SIGINT is unblocked, once it has a handler."""

OUR_PYTHON = sys.version_info[:2]
"""Functions are sent as code of this version."""

MAX_STRANGERS = 64
"""Connections that have not proved yet that they know the key; ranks dial again."""

SECONDS_TO_AUTHENTICATE = 5.0

MAX_READ = 1 << 16

LISTEN_BACKLOG = 1024
"""Ranks that dial at once."""

SECONDS_TO_SHOW = 12.0
"""More than the command takes if its own output is not read."""

SECONDS_TO_END = 45.0
"""From the end of the lifeline: the grace period of the workers is shorter, unless a user has set it."""


class Peer:
    """A rank that has connected."""

    def __init__(self, calls: wire.RankConnection, who: dict[str, Any]) -> None:
        self.calls = calls
        self.control: wire.RankConnection | None = None
        self.rank: int = who["rank"]
        self.size: int = who["size"]
        self.local_size: int = who["local_size"]
        self.host: str = who["host"]
        self.answer: wire.Frame | None = None
        self.is_gone = False

    def close(self) -> None:
        """Close its connections."""
        self.calls.close()
        if self.control is not None:
            self.control.close()


class CommandProcess:
    """The child and its ranks; ``turn`` does all work.

    It is in this process's process group, or in one of its own: a terminal's Ctrl-C reaches the former.
    """

    def __init__(
        self,
        words: Iterable[str],
        joined: Callable[[Peer], object] = lambda _: None,
        *,
        own_group: bool,
        on_other_hosts: bool = False,
    ) -> None:
        """Start it.

        Args:
            words: options.
            joined: is called with each rank that can be called.
            own_group: put it into a process group of its own.
            on_other_hosts: ranks of other hosts dial, too; else those of this node alone.

        Raises:
            OSError: it can't be started.

        """
        self._pid = os.getpid()
        self._words = list(words)
        self._joined = joined
        self.on_other_hosts = on_other_hosts
        self.peers: dict[int, Peer] = {}
        """Those of the attempt that runs, by rank."""
        self.report: EndReport | None = None
        self.has_ended = False
        self.fault: UsageError | None = None
        """Why these ranks can't be called."""
        self._attempt = 0
        self._controls: dict[tuple[int, int], wire.RankConnection] = {}
        """Second connections that came first, by rank and attempt."""
        self._strangers: dict[wire.RankConnection, float] = {}
        """Until when they may introduce themselves."""
        self._received = b""
        self._shown = False
        """It has answered ``SHOW_OUTPUT``."""
        self._key, self._mark = secrets.token_bytes(32), secrets.token_hex(8)
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._output = JobStreams()
        self._selector = selectors.DefaultSelector()
        self._listener = _listener() if on_other_hosts else _local_listener()
        self._listener.setblocking(False)
        self._lifeline, theirs = socket.socketpair()
        open_commands.add(self)
        with theirs:
            self._process = self._started(theirs, own_group=own_group)
        self._output.started()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._lifeline, selectors.EVENT_READ, self._read_report)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._woken)
        for pipe in self._output.pipes:
            self._selector.register(pipe, selectors.EVENT_READ, lambda each=pipe: self._copy(each))

    def _started(self, lifeline: socket.socket, *, own_group: bool) -> subprocess.Popen[bytes]:
        hosts = own_addresses() if self.on_other_hosts else ["127.0.0.1"]
        port = self._listener.getsockname()[1]
        # Until it has a handler, SIGINT would print the interpreter's own traceback.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        program = PROGRAM.format(signal.SIGINT not in mask)
        try:
            return subprocess.Popen(
                # -P: no module of the current folder takes the place of one of ours.
                [
                    sys.executable,
                    python_options("-P"),
                    "-c",
                    program,
                    *self._words,
                    str(RANK_PROGRAM),
                ],
                # In no other place: any number may be a standard stream that the caller has closed.
                stdin=lifeline.fileno(),
                stdout=self._output.stdout.for_command,
                stderr=self._output.stderr.for_command,
                env={
                    **os.environ,
                    CALLER_VARIABLE: f"0:{self._mark}",
                    CALLS_VARIABLE: f"{','.join(hosts)}/{port}/{self._key.hex()}",
                },
                process_group=0 if own_group else None,
            )
        except BaseException:
            self.let_go()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    # What happens.

    def turn(self, seconds: float | None) -> None:
        """Do what is to be done, and wait for it so long at most; None: no limit."""
        for connection, until in list(self._strangers.items()):
            if time.monotonic() > until:
                self._refuse(connection)
        if self._strangers:
            # Then it is seen that one has not introduced itself.
            seconds = (
                SECONDS_TO_AUTHENTICATE
                if seconds is None
                else min(SECONDS_TO_AUTHENTICATE, seconds)
            )
        for key, _ in self._selector.select(seconds):
            # One before it may have closed this one.
            if self._is_watched(key.fileobj):
                key.data()

    def _is_watched(self, source: object) -> bool:
        try:
            self._selector.get_key(source)  # type: ignore[arg-type]
        except (KeyError, ValueError):
            return False
        return True

    def wake(self) -> None:
        """Have ``turn`` return; for any thread."""
        with suppress(OSError):
            os.eventfd_write(self._wakeup, 1)

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)

    @property
    def has_output(self) -> bool:
        """Whether more output may come."""
        return any(map(self._is_watched, self._output.pipes))

    def show_output(self) -> None:
        """Show what ranks have printed by now."""
        self._shown = False
        self.signal(SHOW_OUTPUT)
        until = time.monotonic() + SECONDS_TO_SHOW
        while not (self._shown or self.has_ended) and (left := until - time.monotonic()) > 0:
            self.turn(left)
        self.copy_output()

    def copy_output(self) -> None:
        """Show what the command has printed."""
        while True:
            ready = [key for key, _ in self._selector.select(0) if key.fd in self._output.pipes]
            if not ready:
                return
            for key in ready:
                key.data()

    def _copy(self, pipe: int) -> None:
        if not self._output.copy(pipe):
            self._selector.unregister(pipe)

    def _read_report(self) -> None:
        data = b""
        with suppress(OSError):
            data = self._lifeline.recv(MAX_READ)
        # A line is short; what is longer is none.
        self._received = (self._received + data)[-2 * LONGEST :]
        self._shown = output_shown_line(self._mark) in self._received
        if not data:
            self.has_ended = True
            self._selector.unregister(self._lifeline)
            report = parse_report(self._received, self._mark)
            if report is not None and report.hint:
                report = replace(report, hint=hint_in_python(report.hint, self._words))
            self.report = report
        elif self._shown:
            # Only the end follows, or another one.
            self._received = b""

    # Ranks.

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        if len(self._strangers) >= MAX_STRANGERS:
            self._refuse(next(iter(self._strangers)))
        connection = wire.RankConnection(sock, self._key, accepts=True)
        self._strangers[connection] = time.monotonic() + SECONDS_TO_AUTHENTICATE
        self._selector.register(
            connection, selectors.EVENT_READ, lambda: self._introduced(connection)
        )

    def _refuse(self, connection: wire.RankConnection) -> None:
        del self._strangers[connection]
        self._selector.unregister(connection)
        connection.close()

    def _introduced(self, connection: wire.RankConnection) -> None:
        """Read a stranger's proof and its first frame."""
        try:
            frame = connection.receive()
            if frame is not None and frame[0] == wire.READY:
                frame = connection.receive()
        except wire.Disconnected:
            self._refuse(connection)
            return
        if frame is None:
            return
        del self._strangers[connection]
        self._selector.unregister(connection)
        who = pickle.loads(frame[2][0])
        if who["attempt"] < self._attempt:
            connection.close()
            return
        if who["attempt"] > self._attempt:
            self._attempt = who["attempt"]
            self._forget_peers()
        if who["python"] != OUR_PYTHON:
            ours, theirs = (".".join(map(str, each)) for each in (OUR_PYTHON, who["python"]))
            self.fault = UsageError(
                f"this is Python {ours}, and the workers have {theirs}: functions can't be sent",
                f"choose an interpreter of the same version: python={sys.executable!r}",
            )
        if who["controls"]:
            self._controls[who["rank"], who["attempt"]] = connection
        else:
            self._add(Peer(connection, who))
        self._join(who["rank"])

    def _add(self, peer: Peer) -> None:
        self.peers[peer.rank] = peer
        self._selector.register(peer.calls, selectors.EVENT_READ, lambda: self._receive(peer))

    def _join(self, rank: int) -> None:
        """Have a rank called that has both connections."""
        if rank in self.peers and (rank, self._attempt) in self._controls:
            peer = self.peers[rank]
            peer.control = self._controls.pop((rank, self._attempt))
            peer.control.sock.setblocking(True)
            if self.fault is None:
                self._joined(peer)

    def _forget_peers(self) -> None:
        for peer in self.peers.values():
            self._forget(peer)
        self.peers = {}

    def _forget(self, peer: Peer) -> None:
        if not peer.is_gone:
            peer.is_gone = True
            self._selector.unregister(peer.calls)
            peer.close()

    @property
    def are_complete(self) -> bool:
        """Whether all ranks are connected, of this node or of all hosts."""
        sizes = {
            peer.size if self.on_other_hosts else peer.local_size for peer in self.peers.values()
        }
        whole = [peer for peer in self.peers.values() if peer.control is not None]
        return len(whole) == max(sizes, default=-1)

    def send(self, peer: Peer, kind: int, call: int, parts: list[Any]) -> None:
        """Send a rank a frame; as much of it as its connection takes now."""
        if not peer.is_gone:
            peer.calls.queue(kind, call, parts)
            self._flush(peer)

    def control(self, peer: Peer, kind: int, call: int) -> None:
        """Tell a rank's second thread something."""
        with suppress(wire.Disconnected):
            if peer.control is not None and not peer.is_gone:
                peer.control.send(kind, call)

    def _flush(self, peer: Peer) -> None:
        try:
            peer.calls.flush()
        except wire.Disconnected:
            self._forget(peer)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.calls.is_sending else 0)
        self._selector.modify(peer.calls, wanted, lambda: self._receive(peer))

    def _receive(self, peer: Peer) -> None:
        if peer.calls.is_sending:
            self._flush(peer)
        try:
            while not peer.is_gone and (frame := peer.calls.receive()) is not None:
                peer.answer = frame
        except wire.Disconnected:
            self._forget(peer)

    # The end.

    def signal(self, number: int) -> None:
        """Have the command act as if it had got a signal; for any thread."""
        with suppress(OSError):
            self._lifeline.send(bytes([number]))

    def close_lifeline(self) -> None:
        """Have the command end as by SIGTERM; for any thread, nothing in a forked child."""
        if not self.is_forked_copy:
            with suppress(OSError):
                self._lifeline.shutdown(socket.SHUT_WR)

    def exit_code(self) -> int:
        """Wait for the end of the command, which has reported; return its exit code, or -N for signal N."""
        return self._process.wait()

    def kill(self) -> None:
        """End the command at once, and with it all that it has started."""
        self._process.kill()

    def close(self) -> None:
        """End the command if it still runs; nothing in a forked child."""
        if self.is_forked_copy:
            return
        self._lifeline.close()
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.let_go()

    @property
    def is_forked_copy(self) -> bool:
        """Whether this process is a fork of the one whose ranks these are."""
        return os.getpid() != self._pid

    def let_go(self) -> None:
        """Close this process's descriptors."""
        if self not in open_commands:
            return
        open_commands.discard(self)
        for connection in (*self._strangers, *self._controls.values()):
            connection.close()
        for peer in self.peers.values():
            if not peer.is_gone:
                peer.close()
        self._listener.close()
        self._lifeline.close()
        os.close(self._wakeup)
        self._selector.close()
        self._output.close()


def hint_in_python(hint: str, words: Sequence[str]) -> str:
    """Return a hint for who calls a function: what to type has other words there.

    Args:
        hint: of the command; lines with its program are command lines.
        words: the options with which it was started.

    """
    lines = []
    for line in hint.splitlines():
        before, found, typed = line.partition("clusterrun ")
        if not (found and typed.endswith(str(RANK_PROGRAM))):
            lines.append(line)
        elif before.strip():
            lines.append(f"{before}python {shlex.quote(sys.argv[0])}")
        else:
            new = [word for word in shlex.split(typed)[:-1] if word not in words]
            options = zip(new[::2], new[1::2], strict=False)
            keywords = (f"{flag[2:].replace('-', '_')}={value!r}" for flag, value in options)
            lines.append(f"{before}{', '.join(keywords)}")
    return "\n".join(lines)


def _local_listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=LISTEN_BACKLOG)


def _listener() -> socket.socket:
    """Return a socket that all hosts reach."""
    if socket.has_dualstack_ipv6():
        every = {"family": socket.AF_INET6, "dualstack_ipv6": True}
        return socket.create_server(("", 0), backlog=LISTEN_BACKLOG, **every)  # type: ignore[arg-type]
    return socket.create_server(("", 0), backlog=LISTEN_BACKLOG)


def own_addresses() -> list[str]:
    """Return the addresses at which hosts may reach this one; its own ranks by the last."""
    # Few groups are on several hosts.
    from clusterrun.network.addresses import own_interfaces

    found = [address for each in own_interfaces().values() for address in each]
    # With a zone, or of the loopback, it means another thing elsewhere.
    others = [each for each in found if not each.startswith(("127.", "::1", "fe80"))]
    return [*others, "127.0.0.1"]


open_commands: "WeakSet[CommandProcess]" = WeakSet()
"""The commands of this process whose descriptors are open: each ends when they close."""


def _let_go_in_child() -> None:
    """Close a forked child's copies: it may outlive the caller, with whom those commands end."""
    for each in list(open_commands):
        each.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)
