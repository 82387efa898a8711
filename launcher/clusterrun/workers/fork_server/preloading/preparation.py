"""Getting ready to run the script in place, or finding out why that can't be."""

from __future__ import annotations

import os
import select
import time

from ..agent_socket import Frames
from ..scripts.hidden_modules import hide_all_but
from ..scripts.script import NotToBeRunInPlace, Script
from ..system.fork_limits import why_no_fork
from ..system.other_processes import children_of, describe, work_done
from ..system.pid_namespace import end_like
from ..worker_start import import_psutil, is_to_be_bound
from .interpreter_hazards import why_not_to_fork
from .leading_imports import Import, LeadingImports
from .preload_choice import ALL, AUTO, NONE, choose
from .remembered_trials import RememberedTrial
from .self_test import try_how_forked_scripts_end
from .template import Template

# A process that SIGKILL has not ended after this long is in the kernel's hands (state D).
SECONDS_TO_DIE = 2.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any, NoReturn

    from ..scripts.script_run import ScriptRun
    from ..server import ForkServer


SECONDS_TO_FIRST_NOTICE = 10.0
SECONDS_BETWEEN_NOTICES = 30.0


class Preparation:
    """Nothing is prepared at first: then programs are executed."""

    def __init__(self, fresh: Mapping[str, object], found: Collection[str]) -> None:
        """Take what a script finds at its start: see ``server.main``."""
        self._fresh = fresh
        self._found = found
        self.refusal = ""
        """Why no worker is to be started at all: it can't be run in place, and it must."""
        self._script: Script | None = None
        self._loaded: list[tuple[str, float]] = []
        self._left_out: list[tuple[str, str]] = []

    def script_for(self, request: dict[str, Any]) -> Script | None:
        """Return the script if this worker is to run it in place."""
        script = self._script
        if script is None or not script.is_run_by(request["argv"]):
            return None
        try:
            script.refresh()
        except NotToBeRunInPlace:
            # It has been changed since, and Python is to say what is wrong with it.
            return None
        return script

    def perform(self, request: dict[str, Any], server: ForkServer) -> ScriptRun | None:
        """Do what the agent asks, and tell it what came of it. Returns in the process that serves.

        Returns:
            In a child that only tries whether forked workers end well, what it has to run; else None.

        """
        why, complaint = "", False
        try:
            run = self._prepare(request, server)
            if run is not None:
                return run
        except NotToBeRunInPlace as finding:
            # Who names modules is told when they are not imported.
            asked = request["preload"] != AUTO and not finding.is_end_of_job
            why, complaint = str(finding), finding.is_complaint or asked
        except Exception as error:  # noqa: BLE001 - spawning is right whatever is wrong here
            why, complaint = f"{type(error).__name__}: {error}", True
        if why:
            self._script = None
            self._loaded = []
            self.refusal = why if request["insist"] else ""
        server.agent.send(
            "prepared",
            in_place=self._script is not None,
            why=why,
            complaint=complaint,
            loaded=self._loaded,
            left_out=self._left_out,
        )
        return None

    def _prepare(self, request: dict[str, Any], server: ForkServer) -> ScriptRun | None:
        os.environ.update(request["environ"])
        why = why_not_to_fork(os.environ)
        if why:
            raise NotToBeRunInPlace(why)
        if is_to_be_bound(request["cpus"]):
            # Before the script's folder is searched for modules, which may have names of psutil's.
            import_psutil()
        script = Script(request["argv"], self._fresh, request["environ"])
        reading = LeadingImports()
        hide_all_but(self._found)
        script.enter()
        if request["preload"] in (AUTO, ALL):
            script.read_by(reading)
        choice = choose(request["preload"], reading, request["workers"])
        self._left_out = choice.left_out
        if choice.why_spawn and not request["insist"]:
            raise NotToBeRunInPlace(choice.why_spawn)
        try:
            run = try_how_forked_scripts_end(server)
            if run is None and choice.imports:
                self._grow_template(choice.imports, request, server)
        except OSError as error:
            raise NotToBeRunInPlace(why_no_fork(error), is_complaint=True) from error
        script.imports_are_known = request["preload"] in (AUTO, NONE)
        self._script = script
        return run

    def _grow_template(
        self, imports: list[Import], request: dict[str, Any], server: ForkServer
    ) -> None:
        """Import in a child that takes over; returns there, or here if nothing can be imported.

        Raises:
            NotToBeRunInPlace: a module did what a fork would break.

        """
        known = RememberedTrial(imports, request["unsettled"], os.environ)
        seen = None if request["insist"] else known.read()
        verdict = seen or _try_template(imports, request, server)
        if seen is None and verdict["kind"] != "done":
            known.write(verdict)
        again = f" (seen before; remembered for a week in {known.path})" if seen else ""
        if verdict["kind"] == "tainted":
            # What stands before it can be imported again, in the same order.
            count = verdict["complete"]
            name = f"{imports[count].name} and what is imported after it"
            self._left_out.insert(0, (name, verdict["why"] + again))
            if not count:
                return
            verdict = _try_template(imports[:count], request, server)
        if verdict["kind"] == "done":
            self._loaded = verdict["loaded"]
            return
        raise NotToBeRunInPlace(verdict["why"] + again, is_complaint=verdict["complaint"])


def _try_template(
    imports: list[Import], request: dict[str, Any], server: ForkServer
) -> dict[str, Any]:
    """Fork a template; return its verdict: ``done`` in itself, ``tainted`` or ``refused`` here.

    Raises:
        NotToBeRunInPlace: it has not come to a verdict.
        OSError: it could not be forked.

    """
    report, childs_report = os.pipe()
    permission, our_permission = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(report)
            os.close(our_permission)
            template = Template(childs_report, request["unsettled"])
            loaded = template.preload(imports, server.ignored, request["cpus"])
            os.close(childs_report)
            if not os.read(permission, 1):
                os._exit(1)
            os.close(permission)
            server.become_parent()
        except BaseException:  # noqa: BLE001 - whatever it is, two servers must not go on
            os._exit(1)
        return {"kind": "done", "loaded": loaded}
    os.close(childs_report)
    os.close(permission)
    try:
        verdict = _hear(report, pid, request["patience"], server)
        if verdict["kind"] == "done":
            # Daemons are our children as soon as their parents have ended.
            daemons = [child for child in children_of(server.pid) if child != pid]
            if daemons:
                _end(pid, server)
                raise NotToBeRunInPlace(f"a module started process {daemons[0]}")
            os.write(our_permission, b"!")
            _keep_watch_over(pid, server)
    finally:
        os.close(report)
        os.close(our_permission)
    _end(pid, server)
    return verdict


def _hear(report: int, pid: int, patience: float, server: ForkServer) -> dict[str, Any]:
    """Return the template's verdict.

    Raises:
        NotToBeRunInPlace: there is none that is good; the template has ended.

    """
    poll = select.poll()
    poll.register(report, select.POLLIN)
    poll.register(server.agent, select.POLLIN)
    frames = Frames()
    importing = "what the script imports first"
    work, last_change = 0.0, time.monotonic()
    notice = Notice(last_change)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll(1000)]
        if server.agent.fileno() in ready:
            # It has gone, or ends the job: only then it speaks before it has heard from us.
            _end(pid, server)
            raise NotToBeRunInPlace("the job ends", is_end_of_job=True)
        if report in ready:
            chunk = os.read(report, 1 << 16)
            if not chunk:
                how = _end(pid, server)
                raise NotToBeRunInPlace(f"importing {importing} {how}", is_complaint=True)
            for message in frames.add(chunk):
                if message["kind"] == "importing":
                    importing = message["name"]
                else:
                    return message
        done, now = work_done(pid), time.monotonic()
        if notice.is_due(now):
            server.agent.send("importing", name=importing, seconds=now - notice.began)
        if done != work or ready:
            work, last_change = done, now
        elif now - last_change > patience:
            why = f"importing {importing} hangs: nothing has happened for {patience:g} s"
            return {"kind": "refused", "why": why, "complaint": True}


class Notice:
    """Due when importing has lasted long enough for a person to wonder, and now and then after."""

    def __init__(self, now: float) -> None:
        """Begin."""
        self.began = now
        self._due = now + SECONDS_TO_FIRST_NOTICE

    def is_due(self, now: float) -> bool:
        """Tell, once each time, whether it is time."""
        if now < self._due:
            return False
        self._due = now + SECONDS_BETWEEN_NOTICES
        return True


def _end(pid: int, server: ForkServer) -> str:
    """Kill a template, and what it has started; return how it ended if it had ended by itself."""
    server.kill_children()
    status = server.status_within(pid, SECONDS_TO_DIE)
    # What it had started is ours now; the server reaps it.
    server.kill_children()
    if status is None:
        return f"can't be ended: {describe(pid)}"
    if os.WIFSIGNALED(status):
        return f"was killed by signal {os.WTERMSIG(status)}"
    return f"ended the process with code {os.WEXITSTATUS(status)}"


def _keep_watch_over(pid: int, server: ForkServer) -> NoReturn:
    """Wait for the template that serves now, clean up behind it, and end as it does.

    The agent knows this process, and learns of the end by it.
    """
    status = _wait(pid)
    server.sweep_until_done()
    end_like(status)


def _wait(pid: int) -> int:
    """Reap all until ``pid`` ends; return its status."""
    while True:
        dead, status = os.waitpid(-1, 0)
        if dead == pid:
            return status
