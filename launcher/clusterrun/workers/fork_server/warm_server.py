"""A fork server that stays after its job: it forks a server child for each later job.

Its agent has asked for that, after the imports, with ``stay_warm``. From then on it listens on a
socket of its user's. A later agent connects, and says what a process of its job inherits (its
*key*); the connection becomes the socket between the agent and a *server child*, which is to that
job what a fork server is. The child compares key, files and imports, and refuses what differs: then
the agent starts a new fork server, and this one ends.

If a server child dies, this process kills what the job has left, as it is a subreaper, and reports
to the agent how it died.
"""

from __future__ import annotations

import os
import socket
import time

from .agent_socket import AgentSocket, call_with_address, frame
from .imported_files import stamp_of, stamps_of_modules
from .other_processes import children_of, send_signal
from .this_process import die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any

    from .script_run import ScriptRun
    from .server import ForkServer
else:
    import _signal as signal

SECONDS_TO_END_ANOTHER = 5.0
"""How long another server at the same path may take to accept a connection."""


SECONDS_TO_FIRST_JOB = 10.0
"""How long a new server stays without a job. Its agent asks at once; it does so in vain if another new
server has taken this one's path at the same time."""


class WarmServer:
    """Serves one job after the other, or several at once, until it has been idle for ``seconds``."""

    def __init__(
        self,
        server: ForkServer,
        path: str,
        seconds: float,
        key: dict[str, str],
        is_owned: bool,  # noqa: FBT001 - a field of the message
    ) -> None:
        """Listen at ``path``, whose folder is the user's alone.

        Args:
            server: what has been prepared.
            path: of the socket.
            seconds: after which it ends if no job runs.
            key: what a process of its job inherits, by name.
            is_owned: whether the folder of the socket is that of one process, which may be killed.

        Raises:
            OSError: no socket can be made there.

        """
        self._server = server
        self._path = path
        self._seconds = seconds
        self._idle_limit = min(seconds, SECONDS_TO_FIRST_JOB)
        self._key = key
        self._is_owned = is_owned
        self._files = stamps_of_modules()
        self._jobs: dict[int, AgentSocket] = {}
        """The server children that run, with copies of their sockets to their agents."""
        self._silent: dict[int, AgentSocket] = {}
        """The connections that have sent no whole message yet, by descriptor."""
        self._held_by: AgentSocket | None = None
        """The connection of an owner with whom this process ends; None: it has none."""
        self._idle_since = time.monotonic()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        own = f"{path}.{os.getpid()}"
        call_with_address(self._listener.bind, own)
        self._listener.listen(8)
        # In the place of one that was killed, or is about to end.
        self._inode = os.stat(own).st_ino
        _end_server_at(path)
        os.rename(own, path)

    def serve(self) -> ScriptRun:
        """Serve; return in a worker only, with the script that it runs."""
        process = self._server.process
        self._server.agent.send("warm")
        process.poll.unregister(self._server.agent)
        self._server.agent.close()
        process.poll.register(self._listener, 1)
        while True:
            ready = process.wait(self._milliseconds_left())
            self._reap()
            if self._held_by is not None and self._held_by.fileno() in ready:
                # Its owner has ended, or has no use for it any more.
                self._remove_socket()
                os._exit(0)
            if self._listener.fileno() in ready:
                self._accept()
            for descriptor in self._silent.keys() & set(ready):
                run = self._listen_to(descriptor)
                if run is not None:
                    return run
            if not ready and self._milliseconds_left() == 0:
                self._end()

    def _is_idle(self) -> bool:
        return not self._jobs and self._held_by is None

    def _milliseconds_left(self) -> float | None:
        if not self._is_idle():
            return None
        return max(0.0, self._idle_limit - (time.monotonic() - self._idle_since)) * 1000

    def _reap(self) -> None:
        """Reap children; kill those that are no server child: a dead one has left them."""
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not ended:
                break
            if ended in self._jobs:
                agent = self._jobs.pop(ended)
                agent.send("server_ended", status=status)
                agent.close()
                self._idle_since = time.monotonic()
        for pid in children_of(os.getpid()):
            if pid not in self._jobs:
                send_signal(pid, signal.SIGKILL)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        program = AgentSocket(connection.detach())
        if program.is_of_this_user():
            self._silent[program.fileno()] = program
            self._server.process.poll.register(program, 1)
        else:
            program.close()

    def _listen_to(self, descriptor: int) -> ScriptRun | None:
        """Do what a program asks for in its first message; return in a worker only."""
        program = self._silent[descriptor]
        try:
            messages = program.receive()
        except (OSError, ValueError, EOFError, TypeError, AttributeError):
            # No message: another program than clusterrun.
            messages = None
        if messages == []:
            return None
        self._silent.pop(descriptor)
        self._server.process.poll.unregister(descriptor)
        request = messages[0] if messages else {}
        kind = request.get("kind")
        if kind == "serve":
            return self._fork_server_child(program, request)
        if kind == "hold":
            self._be_held_by(program)
            return None
        if kind == "end":
            self._end()
        program.close()
        return None

    def _fork_server_child(self, agent: AgentSocket, request: dict[str, Any]) -> ScriptRun | None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                return self._serve_job(agent, request, parent)
            except BaseException:  # two servers must not go on
                import traceback

                traceback.print_exc()
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._jobs[pid] = agent
        self._idle_limit = self._seconds
        for each in request.get("descriptors", ()):
            os.close(each)
        return None

    def _serve_job(self, agent: AgentSocket, request: dict[str, Any], parent: int) -> ScriptRun:
        """Serve the agent to the end; return in a worker, with the script that it runs."""
        die_with_parent(parent)
        os.setpgid(0, 0)
        self._listener.close()
        # An agent sees the end of its server child once all copies are closed.
        for other in (*self._jobs.values(), *self._silent.values()):
            other.close()
        os.dup2(request["descriptors"][0], 2)
        os.close(request["descriptors"][0])
        changed = self._changed(request)
        if changed:
            agent.send("changed", what=changed)
            os._exit(0)
        server = self._server
        server.serve_another(agent)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        # As the agent sees it: this process may be in a PID namespace.
        agent.send("ready", pid=server.pid_of_this_process())
        run = server.serve()
        if run is not None:
            return run
        server.cleanup.run_to_the_end()
        os._exit(0)

    def _changed(self, request: dict[str, Any]) -> list[str]:
        """Return the names of what differs from what this process has inherited or imported."""
        own, key = self._key, request["key"]
        names = sorted(name for name in {**own, **key} if own.get(name) != key.get(name))
        files = [path for path, stamp in self._files.items() if stamp_of(path) != stamp]
        imports = ["what the script imports first"]
        changed = names or ["file " + path for path in files]
        return changed or (imports if self._server.imports_changed(request["prepare"]) else [])

    def _be_held_by(self, owner: AgentSocket) -> None:
        poll = self._server.process.poll
        if self._held_by is not None:
            poll.unregister(self._held_by)
            self._held_by.close()
        self._held_by = owner
        poll.register(owner, 1)

    def _end(self) -> None:
        """End, once the jobs have ended that still run; no other agent finds this process."""
        self._remove_socket()
        if not self._jobs:
            os._exit(0)
        self._seconds = self._idle_limit = 0.0

    def _remove_socket(self) -> None:
        """Remove the socket, unless another server has taken its place."""
        try:
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
            if self._is_owned:
                os.rmdir(os.path.dirname(self._path))
        except OSError:
            pass


def _end_server_at(path: str) -> None:
    """Have a server that listens there end as soon as it has no job: no agent will find it again."""
    other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    other.settimeout(SECONDS_TO_END_ANOTHER)
    try:
        call_with_address(other.connect, path)
        other.sendall(frame("end"))
    except OSError:
        pass  # none listens
    other.close()
