"""Prepares the server to run the script in forked workers, or finds out why workers must be spawned."""

from __future__ import annotations

import os
import sys

from ..binding import import_psutil, must_be_bound
from ..hidden_modules import hide_all_but
from ..kernel import describe_fork_error
from ..messages import ImportBegins, Prepared
from ..script import CannotRunInPlace, Script
from .hazards import has_threads, why_not_to_fork
from .imports import Imported, ImportFailed
from .plan import AUTO, PreloadPlan, choose
from .preloaded_torch import PreloadedTorch
from .reexec_cache import ReexecCache
from .script_walk import ScriptWalk
from .self_test import check_exit_codes
from .torch_variables import TORCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import NoReturn

    from ..messages import Prepare
    from ..script_run import ScriptRun
    from ..server import Server
    from .packages import Import


class ScriptPreparation:
    """The script that workers run in place, once the agent has asked for it; at first there is none."""

    def __init__(
        self, script_namespace: Mapping[str, object], initial_modules: Collection[str]
    ) -> None:
        """Take what Python puts into a script's namespace, and the modules it finds imported.

        To be made before this process forks.
        """
        self._had_threads = has_threads()
        self._script_namespace = script_namespace
        self._initial_modules = initial_modules
        self._script: Script | None = None
        self._imported = Imported()
        self._choice = PreloadPlan()
        """What has been imported, or would have been."""
        self._torch: PreloadedTorch | None = None
        self._has_begun = False
        """Whether imports have begun, after which this process may be unfit to start workers."""

    def script_for(self, command: tuple[str, ...]) -> Script | None:
        """Return the script if a worker with this command runs it in place."""
        script = self._script
        if script is None or not script.is_run_by(command):
            return None
        if script.torch is not None and script.reexec_cache.why():
            # A worker of the last attempt had to start over.
            return None
        try:
            script.refresh()
        except CannotRunInPlace:
            # It was changed meanwhile; Python itself reports what is wrong with it.
            return None
        return script

    def perform(self, request: Prepare, server: Server) -> ScriptRun | None:
        """Prepare, and report ``Prepared``.

        Returns:
            In a child that only tests how forked workers end, what it runs; else None.

        """
        trouble = None
        try:
            script = self._choose(request)
            run = self._import(request, server)
            if run is not None:
                return run
            self._use(script)
        except CannotRunInPlace as finding:
            trouble = finding
            # A user who names modules learns that they were not imported.
            trouble.is_complaint = finding.is_complaint or request.preload != AUTO
        except Exception as error:  # whatever it is, workers can still be spawned
            trouble = CannotRunInPlace(f"{type(error).__name__}: {error}", is_complaint=True)
        self._report(server, trouble)
        return None

    def _choose(self, request: Prepare) -> Script:
        """Return the script, once it is known what is to be imported for it.

        Raises:
            CannotRunInPlace: workers can't be forked, or a fork would not be faster.

        """
        os.environ.update(request.known_variables)
        # It looks at what the interpreter has imported by itself.
        why = why_not_to_fork(
            os.environ,
            had_threads=self._had_threads,
            # Who names modules vouches for it.
            site_code_is_fine=not isinstance(request.preload, str),
        )
        if why:
            raise CannotRunInPlace(why)
        if must_be_bound(request.cpus):
            # Before the script's folder, which may hold modules of the same names, is on sys.path.
            import_psutil()
        script = Script(request.command, self._script_namespace, request.known_variables)
        hide_all_but(self._initial_modules)
        script.enter()
        walk = ScriptWalk()
        if request.preload != "none":
            script.read_by(walk)
        script.reexec_cache = ReexecCache(walk.main)
        self._choice = choice = choose(request, walk, script.reexec_cache.why())
        if request.most is not None:
            choice.keep_first(*request.most)
        if choice.why_spawn and not request.must_fork:
            raise CannotRunInPlace(choice.why_spawn, costs_time=bool(choice.not_preloaded))
        return script

    def _import(self, request: Prepare, server: Server) -> ScriptRun | None:
        """Import what was chosen; return in a child of the self test what it runs.

        Raises:
            CannotRunInPlace: forked processes do not end as they should, or a module did what a fork
                would break.

        """
        choice = self._choice
        try:
            run = check_exit_codes(server)
            if run is not None or not choice.in_order:
                return run
            self._has_begun = True
            server.begin_imports()
            self._import_all(choice.imports, request, server)
            if choice.torch and TORCH not in sys.modules:
                self._import_torch(request, server)
            else:
                # One of the others has imported it.
                self._imported.loaded += [(TORCH, 0.0)] * len(choice.torch)
                self._import_followers(request, server)
        except OSError as error:
            raise CannotRunInPlace(describe_fork_error(error), is_complaint=True) from error
        finally:
            if self._has_begun:
                server.end_imports()
        return None

    def _import_torch(self, request: Prepare, server: Server) -> None:
        """Import it as it will be when the script imports it, with the variables that it sets before."""
        before = set(sys.modules)
        kept: dict[str, str | None] = {}
        for name, value, only_if_unset in self._choice.sets:
            if not only_if_unset or name not in os.environ:
                kept.setdefault(name, os.environ.get(name))
                os.environ[name] = value
        printed_before = self._imported.printed
        self._import_all(self._choice.torch, request, server)
        used = self._imported.used
        self._import_followers(request, server)
        pairs = zip(self._imported.printed, printed_before)
        out, err = (now[len(earlier) :] for now, earlier in pairs)
        self._imported.printed = printed_before
        self._torch = PreloadedTorch(before, used, (out, err))
        for name, before_it in kept.items():
            if before_it is None:
                del os.environ[name]
            else:
                os.environ[name] = before_it

    def _import_all(self, imports: Sequence[Import], request: Prepare, server: Server) -> None:
        try:
            self._imported.import_all(
                imports,
                cpus=request.cpus,
                of_workers=request.per_worker_variables,
                begins=lambda name: server.report(ImportBegins(name)),
                reads=lambda why: self._give_up(server, why, len(self._imported.loaded)),
            )
        except ImportFailed as finding:
            if request.preload != AUTO:
                raise
            self._give_up(server, str(finding), len(self._imported.loaded))

    def _import_followers(self, request: Prepare, server: Server) -> None:
        """Import what need not be imported; if that fails, another server does without it."""
        if not self._choice.followers:
            return
        count = len(self._imported.loaded)
        try:
            self._import_all(self._choice.followers, request, server)
        except CannotRunInPlace as finding:
            self._give_up(server, str(finding), count)

    def _use(self, script: Script) -> None:
        script.imports_are_known = self._choice.is_known
        script.printed = self._imported.printed
        script.torch = self._torch
        self._script = script

    def _give_up(self, server: Server, why: str, count: int) -> NoReturn:
        """Have the agent start another server, which imports the first ``count`` modules only."""
        self._report(server, CannotRunInPlace(why, costs_time=False), again=count)
        os._exit(0)

    def _report(
        self, server: Server, trouble: CannotRunInPlace | None, again: int | None = None
    ) -> None:
        """Report why workers are not forked; None: they are. ``again``: as in ``Prepared``."""
        server.report(
            Prepared(
                why=None if trouble is None else str(trouble),
                complaint=trouble is not None and trouble.is_complaint,
                costs_time=trouble is not None and trouble.costs_time,
                # Another process must start the workers.
                must_be_replaced=trouble is not None and self._has_begun,
                again=again,
                loaded=self._imported.loaded if trouble is None else (),
                left_out=self._choice.left_out,
                not_preloaded=self._choice.not_preloaded or None,
                why_not_preloaded=self._choice.why_not_preloaded or None,
                preload_option_helps=self._choice.preload_option_helps,
            )
        )
