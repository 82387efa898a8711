"""Run the ordinary command as a child of a Python program, and accept connections of its ranks."""

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
from functools import partial
from math import inf
from pathlib import Path
from typing import Any
from weakref import WeakSet

from msgspec.structs import replace

from clusterrun.clients.python import wire
from clusterrun.clients.python.output import OutputStream, own_streams
from clusterrun.errors import UsageError
from clusterrun.job.sources import CALLER_VARIABLE
from clusterrun.policy.end_report import (
    MAX_REPORT_BYTES,
    SHOW_OUTPUT,
    EndReport,
    output_shown_line,
    parse_report,
)
from clusterrun.processes import python_options

RANK_PROGRAM = Path(__file__).with_name("rank.py")

ADDRESS_VARIABLE = "_CLUSTERRUN_CALLS"
"""The addresses of the caller, and the key. Other users can't read the variables of a process."""

PACKAGES = str(Path(__file__).parents[3])
"""The folder that contains clusterrun, in case it is only on the caller's own import path."""

PROGRAM = f"""
import sys
sys.path[:0] = () if {PACKAGES!r} in sys.path else ({PACKAGES!r},)
sys.argv[0] = "clusterrun"
from clusterrun.cli.entry import main, prepare_process
prepare_process()
if {{}}:
    import signal
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {{{{signal.SIGINT}}}})
sys.exit(main())
"""
"""What the command's interpreter runs. It unblocks SIGINT, if wanted, once a handler is installed."""

PYTHON_VERSION = sys.version_info[:2]
"""Functions are sent as bytecode of this version."""

MAX_UNAUTHENTICATED = 64
"""When more connect, the oldest unauthenticated connection is closed; ranks retry."""

SECONDS_TO_AUTHENTICATE = 5.0

READ_BYTES = 1 << 16

LISTEN_BACKLOG = 1024
"""So many ranks may connect at the same time."""

SECONDS_TO_SHOW_OUTPUT = 12.0
"""Longer than the command takes if nobody reads its output."""

SECONDS_TO_EXIT = 45.0
"""After the lifeline is closed. The default grace period of the workers is shorter."""


class Peer:
    """A rank that has connected."""

    def __init__(self, calls: wire.RankConnection, hello: dict[str, Any]) -> None:
        self.calls = calls
        self.control: wire.RankConnection | None = None
        self.rank: int = hello["rank"]
        self.size: int = hello["size"]
        self.local_size: int = hello["local_size"]
        self.host: str = hello["host"]
        self.answer: wire.Frame | None = None
        self.is_gone = False

    def close(self) -> None:
        self.calls.close()
        if self.control is not None:
            self.control.close()


class CommandProcess:
    """The command's process and its ranks; all work is done in ``poll``."""

    def __init__(
        self,
        options: Iterable[str],
        on_connected: Callable[[Peer], object] = lambda _: None,
        *,
        own_group: bool,
        on_other_hosts: bool = False,
    ) -> None:
        """Start the command.

        Args:
            options: the command's options.
            on_connected: called with each rank once both of its connections are open.
            own_group: whether the command gets its own process group, which Ctrl-C does not reach.
            on_other_hosts: whether ranks of other hosts connect, too.

        Raises:
            OSError: the command can't be started.

        """
        self._pid = os.getpid()
        self._options = list(options)
        self._on_connected = on_connected
        self.on_other_hosts = on_other_hosts
        self.peers: dict[int, Peer] = {}
        """The ranks of the current attempt."""
        self.report: EndReport | None = None
        self.has_ended = False
        self.fault: UsageError | None = None
        """Why no rank can be called."""
        self._attempt = 0
        self._controls: dict[tuple[int, int], wire.RankConnection] = {}
        """Control connections that wait for the rank's other connection, by rank and attempt."""
        self._unauthenticated: dict[wire.RankConnection, float] = {}
        """By connection, the time of ``time.monotonic`` until which it must authenticate."""
        self._report_data = b""
        self._output_shown = False
        """Whether the command has answered ``SHOW_OUTPUT``."""
        self._key, self._marker = secrets.token_bytes(32), secrets.token_hex(8)
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._outputs = own_streams()
        self._selector = selectors.DefaultSelector()
        self._listener = _listen(on_other_hosts=on_other_hosts)
        self._listener.setblocking(False)
        self._lifeline, command_end = socket.socketpair()
        open_commands.add(self)
        with command_end:
            self._process = self._start(command_end, own_group=own_group)
        for output in self._outputs:
            output.close_command_end()
            if output.pipe is not None:
                self._selector.register(
                    output, selectors.EVENT_READ, partial(self._copy_output, output)
                )
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept_connection)
        self._selector.register(self._lifeline, selectors.EVENT_READ, self._read_report)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._clear_wakeup)

    def _start(self, lifeline: socket.socket, *, own_group: bool) -> subprocess.Popen[bytes]:
        hosts = own_addresses() if self.on_other_hosts else ["127.0.0.1"]
        port = self._listener.getsockname()[1]
        # Without a handler, SIGINT would print a traceback of the interpreter.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        program = PROGRAM.format(signal.SIGINT not in mask)
        try:
            return subprocess.Popen(
                # -P: no module in the current folder may hide one of clusterrun's.
                [
                    sys.executable,
                    python_options("-P"),
                    "-c",
                    program,
                    *self._options,
                    str(RANK_PROGRAM),
                ],
                # No other descriptor is safe: its number may be a standard stream that the caller has closed.
                stdin=lifeline.fileno(),
                stdout=self._outputs[0].for_command,
                stderr=self._outputs[1].for_command,
                env={
                    **os.environ,
                    CALLER_VARIABLE: f"0:{self._marker}",
                    ADDRESS_VARIABLE: f"{','.join(hosts)}/{port}/{self._key.hex()}",
                },
                process_group=0 if own_group else None,
            )
        except BaseException:
            self.close_descriptors()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    # Events.

    def poll(self, seconds: float | None) -> None:
        """Wait for events, for at most ``seconds`` if given, and handle them."""
        for connection, deadline in list(self._unauthenticated.items()):
            if time.monotonic() > deadline:
                self._refuse(connection)
        if self._unauthenticated:
            # Return in time to close connections that do not authenticate.
            seconds = min(SECONDS_TO_AUTHENTICATE, inf if seconds is None else seconds)
        for key, _ in self._selector.select(seconds):
            # The handler of an earlier event may have closed this source.
            if self._is_watched(key.fileobj):
                key.data()

    def _is_watched(self, source: object) -> bool:
        try:
            self._selector.get_key(source)  # type: ignore[arg-type]
        except (KeyError, ValueError):
            return False
        return True

    def wake(self) -> None:
        """Make ``poll`` return; any thread may call this."""
        with suppress(OSError):
            os.eventfd_write(self._wakeup, 1)

    def _clear_wakeup(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)

    @property
    def has_output(self) -> bool:
        """Whether a pipe for output is still open."""
        return any(map(self._is_watched, self._outputs))

    def show_output(self) -> None:
        """Show the output that ranks have written so far."""
        self._output_shown = False
        self.signal(SHOW_OUTPUT)
        until = time.monotonic() + SECONDS_TO_SHOW_OUTPUT
        while not (self._output_shown or self.has_ended) and (left := until - time.monotonic()) > 0:
            self.poll(left)
        self.copy_output()

    def copy_output(self) -> None:
        """Show the output that the command has written so far."""
        while True:
            ready = [key for key, _ in self._selector.select(0) if key.fileobj in self._outputs]
            if not ready:
                return
            for key in ready:
                key.data()

    def _copy_output(self, output: OutputStream) -> None:
        if not output.copy():
            self._selector.unregister(output)

    def _read_report(self) -> None:
        data = b""
        with suppress(OSError):
            data = self._lifeline.recv(READ_BYTES)
        # Longer data is not a line of the command.
        self._report_data = (self._report_data + data)[-2 * MAX_REPORT_BYTES :]
        self._output_shown = output_shown_line(self._marker) in self._report_data
        if not data:
            self.has_ended = True
            self._selector.unregister(self._lifeline)
            report = parse_report(self._report_data, self._marker)
            if report is not None and report.hint:
                report = replace(report, hint=hint_in_python(report.hint, self._options))
            self.report = report
        elif self._output_shown:
            # Only the report, or another answer, follows.
            self._report_data = b""

    # Ranks.

    def _accept_connection(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            self._refuse(next(iter(self._unauthenticated)))
        connection = wire.RankConnection(sock, self._key, accepts=True)
        self._unauthenticated[connection] = time.monotonic() + SECONDS_TO_AUTHENTICATE
        self._selector.register(
            connection, selectors.EVENT_READ, lambda: self._read_hello(connection)
        )

    def _refuse(self, connection: wire.RankConnection) -> None:
        del self._unauthenticated[connection]
        self._selector.unregister(connection)
        connection.close()

    def _read_hello(self, connection: wire.RankConnection) -> None:
        """Read the authentication and the first frame of a new connection."""
        try:
            frame = connection.receive()
            if frame is not None and frame[0] == wire.READY:
                frame = connection.receive()
        except wire.Disconnected:
            self._refuse(connection)
            return
        if frame is None:
            return
        del self._unauthenticated[connection]
        self._selector.unregister(connection)
        hello = pickle.loads(frame[2][0])
        if hello["attempt"] < self._attempt:
            connection.close()
            return
        if hello["attempt"] > self._attempt:
            self._attempt = hello["attempt"]
            self._forget_peers()
        if hello["python"] != PYTHON_VERSION:
            ours, theirs = (".".join(map(str, each)) for each in (PYTHON_VERSION, hello["python"]))
            self.fault = UsageError(
                f"this is Python {ours}, but the workers have {theirs}: functions can't be sent",
                f"choose an interpreter of the same version: python={sys.executable!r}",
            )
        if hello["controls"]:
            self._controls[hello["rank"], hello["attempt"]] = connection
        else:
            peer = self.peers[hello["rank"]] = Peer(connection, hello)
            self._selector.register(connection, selectors.EVENT_READ, partial(self._receive, peer))
        self._pair_connections(hello["rank"])

    def _pair_connections(self, rank: int) -> None:
        """Call ``on_connected`` for a rank that has both connections."""
        if rank in self.peers and (rank, self._attempt) in self._controls:
            peer = self.peers[rank]
            peer.control = self._controls.pop((rank, self._attempt))
            peer.control.sock.setblocking(True)
            if self.fault is None:
                self._on_connected(peer)

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
    def all_connected(self) -> bool:
        """Whether all ranks of this node, or of all hosts, are connected."""
        peers = self.peers.values()
        sizes = {peer.size if self.on_other_hosts else peer.local_size for peer in peers}
        return bool(peers) and sum(peer.control is not None for peer in peers) == max(sizes)

    def send(self, peer: Peer, kind: int, call: int, parts: list[Any]) -> None:
        """Queue a frame for a rank, and send as much as its connection accepts now."""
        if not peer.is_gone:
            peer.calls.queue(kind, call, parts)
            self._flush(peer)

    def control(self, peer: Peer, kind: int, call: int) -> None:
        """Send a frame to a rank's second thread."""
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
        """Make the command act as if it had received a signal; any thread may call this."""
        with suppress(OSError):
            self._lifeline.send(bytes([number]))

    def close_lifeline(self) -> None:
        """Make the command stop as after SIGTERM; any thread may call this. No effect in a forked child."""
        if not self.is_forked_copy:
            with suppress(OSError):
                self._lifeline.shutdown(socket.SHUT_WR)

    def exit_code(self) -> int:
        """Wait until the command has exited; return its exit code, or -N for signal N."""
        return self._process.wait()

    def kill(self) -> None:
        """Kill the command; everything that it has started is then killed, too."""
        self._process.kill()

    def close(self) -> None:
        """Stop the command if it still runs, and close all connections. No effect in a forked child."""
        if self.is_forked_copy:
            return
        self._lifeline.close()
        try:
            self._process.wait(SECONDS_TO_EXIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.close_descriptors()

    @property
    def is_forked_copy(self) -> bool:
        """Whether this object is a copy in a forked child of the caller."""
        return os.getpid() != self._pid

    def close_descriptors(self) -> None:
        """Close this process's descriptors; in a forked child, this does not affect the command."""
        if self not in open_commands:
            return
        open_commands.discard(self)
        for connection in (*self._unauthenticated, *self._controls.values()):
            connection.close()
        for peer in self.peers.values():
            if not peer.is_gone:
                peer.close()
        self._listener.close()
        self._lifeline.close()
        os.close(self._wakeup)
        self._selector.close()
        for output in self._outputs:
            output.close()


def hint_in_python(hint: str, given: Sequence[str]) -> str:
    """Return a hint with Python keywords in place of command lines.

    Args:
        hint: a hint of the command; its command lines end with the rank program.
        given: the options with which the command was started.

    """
    lines = []
    for line in hint.splitlines():
        before, found, typed = line.partition("clusterrun ")
        if not (found and typed.endswith(str(RANK_PROGRAM))):
            lines.append(line)
        elif before.strip():
            lines.append(f"{before}python {shlex.quote(sys.argv[0])}")
        else:
            new = [word for word in shlex.split(typed)[:-1] if word not in given]
            options = zip(new[::2], new[1::2], strict=False)
            keywords = (f"{flag[2:].replace('-', '_')}={value!r}" for flag, value in options)
            lines.append(f"{before}{', '.join(keywords)}")
    return "\n".join(lines)


def _listen(*, on_other_hosts: bool) -> socket.socket:
    if not on_other_hosts:
        return socket.create_server(("127.0.0.1", 0), backlog=LISTEN_BACKLOG)
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=LISTEN_BACKLOG, dualstack_ipv6=dual)


def own_addresses() -> list[str]:
    """Return the addresses at which hosts may reach this one; the last is for ranks of this host."""
    # Imported only for ranks on several hosts.
    from clusterrun.network.addresses import own_interfaces

    found = [address for each in own_interfaces().values() for address in each]
    # Loopback and link-local addresses mean something else on other hosts.
    others = [each for each in found if not each.startswith(("127.", "::1", "fe80"))]
    return [*others, "127.0.0.1"]


open_commands: "WeakSet[CommandProcess]" = WeakSet()
"""The commands of this process with open descriptors. A command stops when its lifeline is closed."""


def _close_in_child() -> None:
    """Close a forked child's copies of lifelines, because the child may outlive the caller."""
    for each in list(open_commands):
        each.close_descriptors()


os.register_at_fork(after_in_child=_close_in_child)
