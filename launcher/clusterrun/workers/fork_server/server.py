"""The server's loop: performs what the agent asks for, and watches the workers until the agent is gone."""

from __future__ import annotations

import gc
import os
import sys

from .agent_socket import AgentSocket
from .cleanup import Cleanup
from .forking_process import ForkingProcess
from .lease import Lease
from .preloading.preparation import Preparation
from .this_process import close_descriptors_above, refused_protections
from .workers import Workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from .script_run import ScriptRun
    from .warm_server import WarmServer

AGENT_FD = 3
STDERR_FD = 4
"""The agent's standard error; descriptor 2 is a pipe for errors of the interpreter's start."""


def main(script_namespace: Mapping[str, object], initial_modules: Collection[str]) -> ScriptRun:
    """Serve the agent until it closes its end of the socket, then clean up and exit.

    Args:
        script_namespace: what Python puts into the namespace of a script.
        initial_modules: the modules that a script finds imported.

    Returns:
        What a forked child runs. It never returns in the server.

    """
    # Workers need not search our objects at their end.
    gc.freeze()
    gc.enable()
    # Of what the launcher's own parent left open, workers get descriptors 0, 1 and 2 only.
    close_descriptors_above(STDERR_FD)
    os.dup2(STDERR_FD, 2)
    os.close(STDERR_FD)
    agent = AgentSocket(AGENT_FD)
    refused = refused_protections()
    # The pids that the agent and users know are those of this /proc, whatever is mounted later.
    host_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    flags = sys.argv[1 : sys.argv.index("--")]
    if "--contain" in flags:
        from .pid_namespace import enter_pid_namespace

        try:
            enter_pid_namespace(AGENT_FD)
        except OSError as error:
            agent.send("not_contained", error=error.strerror)
            os._exit(0)
    agent.send("ready", refused=refused)
    server = ForkServer(agent, host_proc, script_namespace, initial_modules)
    if "--warm" in flags:
        # Imported before our own modules are hidden.
        from .warm_server import WarmServer

        server.warm_server = WarmServer
    run = server.serve()
    if run is not None:
        return run
    server.cleanup.run_to_the_end()
    # The agent waits for this; Python's own end takes 7 ms.
    os._exit(0)


class ForkServer:
    """Serves one agent."""

    def __init__(
        self,
        agent: AgentSocket,
        host_proc: int,
        script_namespace: Mapping[str, object],
        initial_modules: Collection[str],
    ) -> None:
        self.agent = agent
        self.process = ForkingProcess(agent)
        self.workers = Workers(self.process, host_proc)
        self.cleanup = Cleanup(self.process, self.workers)
        self._lease = Lease()
        self._host_proc = host_proc
        self._script_namespace = script_namespace
        self._initial_modules = initial_modules
        self._preparation: Preparation | None = None
        self.warm_server: type[WarmServer] | None = None
        """Set if this server may stay after its job."""

    def serve(self) -> ScriptRun | None:
        """Answer messages and watch the workers until the agent closes its end.

        Returns:
            In a forked child that runs a script, what it runs; else None.

        """
        while True:
            for descriptor in self.process.wait(self._milliseconds_left()):
                if descriptor != self.agent.fileno():
                    self.workers.read_start(descriptor)
                    continue
                messages = self.agent.receive()
                if messages is None:
                    return None
                for message in messages:
                    run = self._perform(message)
                    if run is not None:
                        return run
            self.process.report_signals()
            if self._lease.is_over():
                self.workers.kill_groups()
            self.cleanup.go_on(no_children=self.workers.reap())

    def _milliseconds_left(self) -> float | None:
        times = (self.cleanup.milliseconds_left(), self._lease.milliseconds_left())
        return min((each for each in times if each is not None), default=None)

    def serve_another(self, agent: AgentSocket) -> None:
        """Become the server of another agent, in a child: what has been prepared stays."""
        self.agent = self.process.agent = agent
        self.process.take_over()
        self.workers = Workers(self.process, self._host_proc)
        self.cleanup = Cleanup(self.process, self.workers)
        self._lease = Lease()

    def pid_of_this_process(self) -> int:
        """Return the pid that the agent's /proc shows."""
        return int(os.readlink("self", dir_fd=self._host_proc))

    def imports_changed(self, request: dict[str, Any]) -> bool:
        """Tell whether the script of ``request`` no longer begins with what has been imported."""
        return self._preparation is None or self._preparation.imports_changed(request)

    def _perform(self, message: dict[str, Any]) -> ScriptRun | None:
        kind = message.pop("kind")
        if kind == "start_worker":
            return self._start_worker(message)
        if kind == "prepare":
            if self._preparation is None:
                self._preparation = Preparation(self._script_namespace, self._initial_modules)
            return self._preparation.perform(message, self)
        if kind == "stay_warm" and self.warm_server is not None:
            return self.warm_server(self, **message).serve()
        if kind == "signal":
            self.workers.signal(**message)
        elif kind == "forward":
            self.workers.forward(**message)
        elif kind == "clean_up":
            self.cleanup.begin()
        elif kind == "lease":
            self._lease.renew(**message)
        return None

    def _start_worker(self, request: dict[str, Any]) -> ScriptRun | None:
        script, refusal = None, ""
        if self._preparation is not None:
            script, refusal = self._preparation.script_for(request), self._preparation.refusal
        if script is not None or not refusal:
            return self.workers.start(request, script)
        for descriptor in request["descriptors"]:
            os.close(descriptor)
        rank = request["local_rank"]
        self.agent.send("not_started", local_rank=rank, step="run in place", error=refusal)
        return None
