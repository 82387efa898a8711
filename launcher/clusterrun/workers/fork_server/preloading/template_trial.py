"""Tries the imports in a child; if they are safe, the child takes over as the process that forks."""

from __future__ import annotations

import os
import select
import time

from ..agent_socket import Frames
from ..other_processes import children_of, describe, work_done
from ..script import NotToBeRunInPlace
from ..this_process import end_like
from .template import Template

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from ..server import ForkServer
    from .leading_imports import Import

SECONDS_TO_DIE = 2.0
"""A process that SIGKILL has not ended after this long hangs in the kernel (state D)."""

SECONDS_TO_FIRST_NOTICE = 10.0
SECONDS_BETWEEN_NOTICES = 30.0


class TemplateTrial:
    """Forks the template, watches it import, and lets it take over or kills it."""

    def __init__(self, request: dict[str, Any], server: ForkServer) -> None:
        self._request = request
        self._server = server
        self._process = server.process

    def run(self, imports: list[Import]) -> dict[str, Any]:
        """Return the finding.

        Its ``kind`` is ``safe`` in the template, which serves from now on. In this process it is
        ``variable_read``, with the number of imports before that, or ``not_safe``.

        Raises:
            NotToBeRunInPlace: the template has ended without a finding.
            OSError: it could not be forked.

        """
        report, childs_report = os.pipe()
        childs_permission, permission = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(report)
            os.close(permission)
            return self._import_as_template(imports, childs_report, childs_permission)
        os.close(childs_report)
        os.close(childs_permission)
        try:
            finding = self._wait_for_finding(pid, report)
            if finding["kind"] == "safe":
                self._let_take_over(pid, permission)
        finally:
            os.close(report)
            os.close(permission)
        self._kill(pid)
        return finding

    def _import_as_template(
        self, imports: list[Import], report: int, permission: int
    ) -> dict[str, Any]:
        try:
            template = Template(report, self._request["later_variables"])
            loaded = template.preload(imports, self._process.ignored, self._request["cpus"])
            os.close(report)
            if not os.read(permission, 1):
                os._exit(1)
            os.close(permission)
            self._process.take_over()
        except BaseException:  # whatever it is, two servers must not go on
            os._exit(1)
        return {"kind": "safe", "loaded": loaded, "printed": template.printed}

    def _wait_for_finding(self, pid: int, report: int) -> dict[str, Any]:
        agent, import_timeout = self._server.agent, self._request["import_timeout"]
        poll = select.poll()
        poll.register(report, select.POLLIN)
        poll.register(agent, select.POLLIN)
        frames = Frames()
        module = "what the script imports first"
        began = last_change = time.monotonic()
        work, next_notice = 0.0, began + SECONDS_TO_FIRST_NOTICE
        while True:
            ready = [descriptor for descriptor, _ in poll.poll(1000)]
            if agent.fileno() in ready:
                # The agent is gone or ends the job: it sends nothing else before "prepared".
                self._kill(pid)
                raise NotToBeRunInPlace("the job ends", is_end_of_job=True)
            if report in ready:
                chunk = os.read(report, 1 << 16)
                if not chunk:
                    how = self._kill(pid)
                    raise NotToBeRunInPlace(f"importing {module} {how}", is_complaint=True)
                for message in frames.add(chunk):
                    if message["kind"] != "importing":
                        return message
                    module = message["module"]
            done, now = work_done(pid), time.monotonic()
            if now >= next_notice:
                agent.send("importing", module=module, seconds=now - began)
                next_notice = now + SECONDS_BETWEEN_NOTICES
            if done != work or ready:
                work, last_change = done, now
            elif now - last_change > import_timeout:
                why = f"importing {module} hangs: nothing has happened for {import_timeout:g} s"
                return {"kind": "not_safe", "why": why, "complaint": True}

    def _let_take_over(self, pid: int, permission: int) -> NoReturn:
        """Let the template serve, clean up when it ends, and end as it does: the agent knows our pid.

        Raises:
            NotToBeRunInPlace: a module started a daemon, which is our child by now.

        """
        daemons = [child for child in children_of(self._process.pid) if child != pid]
        if daemons:
            self._kill(pid)
            raise NotToBeRunInPlace(f"a module started process {daemons[0]}")
        os.write(permission, b"!")
        reaped, status = os.waitpid(-1, 0)
        while reaped != pid:
            reaped, status = os.waitpid(-1, 0)
        self._server.cleanup.run_to_the_end()
        end_like(status)

    def _kill(self, pid: int) -> str:
        """Kill the template, and what it has started; return how it ended, if it had already."""
        self._process.kill_children()
        status = self._process.reap_within(pid, SECONDS_TO_DIE)
        # What it had started is our child now; the server reaps it.
        self._process.kill_children()
        if status is None:
            return f"can't be ended: {describe(pid)}"
        if os.WIFSIGNALED(status):
            return f"was killed by signal {os.WTERMSIG(status)}"
        return f"ended the process with code {os.WEXITSTATUS(status)}"
