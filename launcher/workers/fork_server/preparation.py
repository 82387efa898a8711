"""Getting ready to run the script in place, or finding out why that can't be."""

from __future__ import annotations

import os
import select
import time

from .agent_socket import Frames
from .followers import followers_of_torch
from .hazards import before_preloading
from .leading_imports import Import, LeadingImports, is_standard
from .modules import hide_all_but
from .namespace import end_like
from .printed import Printed, import_as_script
from .proc import children_of, work_done
from .script import NotToBeRunInPlace, Script
from .template import Template

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any, NoReturn

    from .server import ForkServer

READS_RANK = frozenset({"lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics"})
"""Known to look at RANK when they are imported, and to import torch first: no need to find out."""

MOST_TRIES = 3

_WORDS = ("auto", "none")
"""What ``--preload`` takes besides modules."""


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

    def perform(self, request: dict[str, Any], server: ForkServer) -> None:
        """Do what the agent asks, and tell it what came of it. Returns in the process that serves."""
        why, complaint = "", False
        try:
            self._prepare(request, server)
        except NotToBeRunInPlace as finding:
            # Who names modules is told when they are not imported.
            why, complaint = str(finding), finding.is_complaint or request["preload"] not in _WORDS
            self._script = None
            self._loaded = []
            if request["insist"]:
                self.refusal = why
        server.agent.send(
            "prepared",
            in_place=self._script is not None,
            why=why,
            complaint=complaint,
            loaded=self._loaded,
            left_out=self._left_out,
        )

    def _prepare(self, request: dict[str, Any], server: ForkServer) -> None:
        os.environ.update(request["environ"])
        why = before_preloading(os.environ, request["unsettled"])
        if why:
            raise NotToBeRunInPlace(why)
        script = Script(request["argv"], self._fresh)
        hide_all_but(self._found)
        script.enter()
        reading = LeadingImports()
        imports = self._wanted(request["preload"], script, reading)
        if all(is_standard(wanted.name.partition(".")[0]) for wanted in imports):
            self._import_here(imports)
        else:
            followers = followers_of_torch(reading.words, reading.strings)
            self._grow_template(imports, followers, request, server)
        self._script = script

    def _wanted(
        self, preload: str | tuple[str, ...], script: Script, reading: LeadingImports
    ) -> list[Import]:
        """Return what to import, in order."""
        if not isinstance(preload, str):
            return [Import(name, ()) for name in preload]
        if preload == "none":
            return []
        script.read_by(reading)
        if reading.imports_follow:
            where = os.path.basename(reading.stopped_at)
            self._left_out.append(
                (f"what is imported from {where} on", "that line may do anything")
            )
        for number, wanted in enumerate(reading.found):
            if wanted.name.partition(".")[0] in READS_RANK:
                why = "it looks at RANK when it is imported"
                self._left_out.append((wanted.name, why))
                return [*reading.found[:number], Import("torch", ())]
        return reading.found

    def _import_here(self, imports: list[Import]) -> None:
        """Import what comes with Python: that is quick, and prints at most.

        Raises:
            NotToBeRunInPlace: it has printed.

        """
        printed = Printed()
        for wanted in imports:
            start = time.monotonic()
            try:
                import_as_script(wanted.name, wanted.names)
            except Exception as error:  # noqa: BLE001 - the script's own import will say it
                self._left_out.append((wanted.name, str(error)))
                break
            self._loaded.append((wanted.name, time.monotonic() - start))
        line = printed.first_line()
        printed.give_back()
        if line:
            raise NotToBeRunInPlace(f"a module printed {line}", is_complaint=True)

    def _grow_template(
        self,
        imports: list[Import],
        followers: tuple[str, ...],
        request: dict[str, Any],
        server: ForkServer,
    ) -> None:
        """Import in a child that takes over; returns there, or here if nothing is to be imported.

        Raises:
            NotToBeRunInPlace: a module did what a fork would break.

        """
        for _ in range(MOST_TRIES):
            verdict = self._try_template(imports, followers, request, server)
            if verdict["kind"] == "done":
                self._loaded = verdict["loaded"]
                return
            tainted = verdict["modules"]
            who = tainted[0] if len(tainted) > 1 else "it"
            self._left_out.append((tainted[-1], f"{who} looks at {verdict['what']}"))
            imports = [
                Import(name, ()) for name in verdict["complete"] if _is_free_of(name, tainted)
            ]
            if not imports:
                return
        raise NotToBeRunInPlace("too many modules look at what each worker gets its own")

    def _try_template(
        self,
        imports: list[Import],
        followers: tuple[str, ...],
        request: dict[str, Any],
        server: ForkServer,
    ) -> dict[str, Any]:
        """Fork a template; return its verdict: ``done`` in itself, ``tainted`` here."""
        report, childs_report = os.pipe()
        permission, our_permission = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(report)
            os.close(our_permission)
            template = Template(childs_report, request["unsettled"])
            loaded = template.preload(imports, followers, request["cpus"])
            os.close(childs_report)
            if not os.read(permission, 1):
                os._exit(1)
            os.close(permission)
            server.become_parent()
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
    while True:
        ready = [descriptor for descriptor, _ in poll.poll(1000)]
        if server.agent.fileno() in ready:
            # It has gone, or ends the job: only then it speaks before it has heard from us.
            _end(pid, server)
            raise NotToBeRunInPlace("the job ends")
        if report in ready:
            chunk = os.read(report, 1 << 16)
            if not chunk:
                how = _end(pid, server)
                raise NotToBeRunInPlace(f"importing {importing} {how}", is_complaint=True)
            for message in frames.add(chunk):
                if message["kind"] == "importing":
                    importing = message["name"]
                elif message["kind"] == "refused":
                    _end(pid, server)
                    raise NotToBeRunInPlace(message["why"], is_complaint=message["complaint"])
                else:
                    return message
        done, now = work_done(pid), time.monotonic()
        if done != work or ready:
            work, last_change = done, now
        elif now - last_change > patience:
            _end(pid, server)
            why = f"importing {importing} hangs: nothing has happened for {patience:g} s"
            raise NotToBeRunInPlace(why, is_complaint=True)


def _end(pid: int, server: ForkServer) -> str:
    """Kill a template, and what it has started; return how it ended if it had ended by itself."""
    server.kill_children()
    _, status = os.waitpid(pid, 0)
    # What it had started is ours now; the server reaps it.
    server.kill_children()
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


def _is_free_of(name: str, tainted: list[str]) -> bool:
    """Tell whether neither a module nor one of its packages is among ``tainted``."""
    parts = name.split(".")
    return not any(".".join(parts[: n + 1]) in tainted for n in range(len(parts)))
