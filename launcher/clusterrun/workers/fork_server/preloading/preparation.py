"""Prepares the server to run the script in forked workers, or finds out why workers must be spawned."""

from __future__ import annotations

import os

from ..binding import import_psutil, must_be_bound
from ..hidden_modules import hide_all_but
from ..other_processes import why_no_fork
from ..script import NotToBeRunInPlace, Script
from .interpreter_hazards import why_not_to_fork
from .known_packages import WORTH_A_FORK
from .leading_imports import LeadingImports
from .preload_choice import ALL, AUTO, choose
from .remembered_trials import RememberedTrial
from .self_test import try_how_forked_scripts_end
from .template_trial import TemplateTrial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from ..script_run import ScriptRun
    from ..server import ForkServer
    from .leading_imports import Import
    from .preload_choice import Choice


class Preparation:
    """The script that workers run in place, once the agent has asked for it; at first there is none."""

    def __init__(
        self, script_namespace: Mapping[str, object], initial_modules: Collection[str]
    ) -> None:
        self.refusal = ""
        """Why no worker is started at all: the script must be forked, and can't be."""
        self._script_namespace = script_namespace
        self._initial_modules = initial_modules
        self._script: Script | None = None
        self._imported: list[str] | None = None
        """The imports of an earlier job, in a child of a warm server; None: it is the first job."""
        self._loaded: list[tuple[str, float]] = []
        self._printed = (b"", b"")
        self._left_out: list[tuple[str, str]] = []

    def script_for(self, request: dict[str, Any]) -> Script | None:
        """Return the script if this worker runs it in place."""
        script = self._script
        if script is None or not script.is_run_by(request["command"]):
            return None
        try:
            script.refresh()
        except NotToBeRunInPlace:
            # It was changed meanwhile; Python itself reports what is wrong with it.
            return None
        return script

    def perform(self, request: dict[str, Any], server: ForkServer) -> ScriptRun | None:
        """Prepare, and report ``prepared``. Returns in the process that serves from now on.

        Returns:
            In a child that only tests how forked workers end, what it runs; else None.

        """
        why, complaint, costs_time = "", False, True
        try:
            run = self._prepare(request, server)
            if run is not None:
                return run
        except NotToBeRunInPlace as finding:
            # A user who names modules learns that they were not imported.
            named = request["preload"] != AUTO and not finding.is_end_of_job
            why, complaint = str(finding), finding.is_complaint or named
            costs_time = finding.costs_time
        except Exception as error:  # whatever it is, workers can still be spawned
            why, complaint = f"{type(error).__name__}: {error}", True
        if why:
            self._script = None
            self._loaded = []
            self.refusal = why if request["must_fork"] else ""
        server.agent.send(
            "prepared",
            in_place=self._script is not None,
            why=why,
            complaint=complaint,
            costs_time=bool(why) and costs_time,
            loaded=self._loaded,
            left_out=self._left_out,
        )
        return None

    def _prepare(self, request: dict[str, Any], server: ForkServer) -> ScriptRun | None:
        os.environ.update(request["known_variables"])
        # It looks at what the interpreter has imported by itself.
        why = why_not_to_fork(os.environ) if self._imported is None else ""
        if why:
            raise NotToBeRunInPlace(why)
        if must_be_bound(request["cpus"]):
            # Before the script's folder, which may hold modules of the same names, is on sys.path.
            import_psutil()
        script = Script(request["command"], self._script_namespace, request["known_variables"])
        if self._imported is None:
            hide_all_but(self._initial_modules)
        script.enter(again=self._imported is not None)
        choice = _choice_of(script, request)
        self._left_out = choice.left_out
        if choice.why_spawn and not request["must_fork"]:
            slow = bool(choice.stopped_by) and script.names_an_import_of(WORTH_A_FORK)
            raise NotToBeRunInPlace(choice.why_spawn, costs_time=slow)
        script.imports_are_known = choice.is_known
        if self._imported is not None:
            script.printed = self._printed
            self._script = script
            return None
        self._imported = [wanted.name for wanted in choice.imports]
        try:
            run = try_how_forked_scripts_end(server.process)
            if run is None and choice.imports:
                self._preload(choice.imports, request, server)
        except OSError as error:
            raise NotToBeRunInPlace(why_no_fork(error), is_complaint=True) from error
        script.printed = self._printed
        self._script = script
        return run

    def imports_changed(self, request: dict[str, Any]) -> bool:
        """Tell whether the script of ``request`` no longer begins with what has been imported."""
        try:
            script = Script(request["command"], self._script_namespace, request["known_variables"])
            choice = _choice_of(script, request)
        except NotToBeRunInPlace:
            return True
        return [wanted.name for wanted in choice.imports] != self._imported

    def _preload(self, imports: list[Import], request: dict[str, Any], server: ForkServer) -> None:
        """Import in a child that takes over; returns there, or here if nothing can be imported.

        Raises:
            NotToBeRunInPlace: a module did what a fork would break.

        """
        remembered = RememberedTrial(imports, request["later_variables"], os.environ)
        known = None if request["must_fork"] else remembered.read()
        finding = known or TemplateTrial(request, server).run(imports)
        if known is None and finding["kind"] == "variable_read":
            remembered.write(finding)
        note = f" (seen before; remembered for a week in {remembered.path})" if known else ""
        if finding["kind"] == "variable_read":
            # The imports before this one are safe: they are imported again, in the same order.
            count = finding["imported"]
            name = f"{imports[count].name} and what is imported after it"
            self._left_out.insert(0, (name, finding["why"] + note))
            if not count:
                return
            finding = TemplateTrial(request, server).run(imports[:count])
        if finding["kind"] != "safe":
            raise NotToBeRunInPlace(finding["why"], is_complaint=finding["complaint"])
        self._loaded, self._printed = finding["loaded"], finding["printed"]


def _choice_of(script: Script, request: dict[str, Any]) -> Choice:
    """Return what is to be imported before the fork: what the script imports first, by --preload."""
    reading = LeadingImports()
    if request["preload"] in (AUTO, ALL):
        script.read_by(reading)
    return choose(request["preload"], reading, request["workers"])
