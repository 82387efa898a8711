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
from .imports import Importer, ImportFailed
from .packages import Import
from .plan import AUTO, PreloadPlan, plan_preload
from .preloaded_torch import PreloadedTorch
from .reexec_cache import ReexecCache
from .script_walk import ScriptWalk
from .torch_variables import DYNAMO, TORCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import NoReturn

    from ..messages import Prepare
    from ..server import Server


class ScriptPreparation:
    """The script that workers run in place; there is none until the agent has requested it."""

    def __init__(
        self, script_namespace: Mapping[str, object], initial_modules: Collection[str]
    ) -> None:
        """Take what Python puts into a script's namespace, and the modules that it finds imported.

        To be made before this process forks.
        """
        self._had_threads = has_threads()
        self._script_namespace = script_namespace
        self._initial_modules = initial_modules
        self._script: Script | None = None
        self._importer = Importer()
        self._plan = PreloadPlan()
        self._torch: PreloadedTorch | None = None
        self._has_begun = False
        """Whether imports have begun. If one fails, this process can't start workers."""

    def script_for(self, command: tuple[str, ...]) -> Script | None:
        """Return the script if a worker with this command runs it in place."""
        script = self._script
        if script is None or not script.is_run_by(command):
            return None
        if script.torch is not None and script.reexec_cache.why():
            # A worker of the last attempt had to execute its program again.
            return None
        try:
            script.refresh()
        except CannotRunInPlace:
            # It was changed meanwhile; a spawned Python reports what is wrong with it.
            return None
        return script

    def perform(self, request: Prepare, server: Server) -> None:
        """Prepare, and report ``Prepared``."""
        trouble = None
        try:
            script = self._make_plan(request)
            self._import(request, server)
            script.imports_are_known = self._plan.is_verified
            script.printed = self._importer.printed
            script.torch = self._torch
            self._script = script
        except CannotRunInPlace as error:
            trouble = error
            # A user who names modules must learn that they were not imported.
            trouble.must_warn = error.must_warn or request.preload != AUTO
        except Exception as error:  # whatever it is, workers can still be spawned
            trouble = CannotRunInPlace(f"{type(error).__name__}: {error}", must_warn=True)
        self._report(server, trouble)

    def _make_plan(self, request: Prepare) -> Script:
        """Read the script and decide what to import for it.

        Raises:
            CannotRunInPlace: workers can't be forked, or forking would not be faster.

        """
        os.environ.update(request.known_variables)
        # First, because it checks what the interpreter has imported by itself.
        why = why_not_to_fork(
            os.environ,
            had_threads=self._had_threads,
            # A user who names modules vouches for it.
            trusts_site_code=not isinstance(request.preload, str),
        )
        if why:
            raise CannotRunInPlace(why)
        if must_be_bound(request.cpus):
            # Before the script's folder, which may have modules of the same names, is on sys.path.
            import_psutil()
        script = Script(request.command, self._script_namespace, request.known_variables)
        hide_all_but(self._initial_modules)
        script.enter()
        walk = ScriptWalk()
        if request.preload != "none":
            script.read_by(walk)
        script.reexec_cache = ReexecCache(walk.main_file)
        self._plan = plan = plan_preload(request, walk, script.reexec_cache.why())
        if request.only_first is not None:
            plan.keep_first(*request.only_first)
        if request.preload == AUTO and plan.in_order:
            script.note_files(source.path for source in walk.sources)
        if plan.why_spawn and not request.must_fork:
            raise CannotRunInPlace(plan.why_spawn, costs_time=bool(plan.not_preloaded))
        return script

    def _import(self, request: Prepare, server: Server) -> None:
        """Import the modules of the plan.

        Raises:
            CannotRunInPlace: a module did something that a fork would break.

        """
        if not self._plan.in_order:
            return
        self._has_begun = True
        try:
            server.begin_imports()
            self._import_all(self._plan.imports, request, server)
            if self._plan.hides_torch and TORCH not in sys.modules:
                self._import_torch(request, server)
            else:
                if self._plan.hides_torch:
                    # Another module has imported it.
                    self._importer.loaded.append((TORCH, 0.0))
                self._import_dynamo(request, server)
        except OSError as error:
            raise CannotRunInPlace(describe_fork_error(error), must_warn=True) from error
        finally:
            server.end_imports()

    def _import_torch(self, request: Prepare, server: Server) -> None:
        """Import torch with the variables that the script sets before its own import."""
        modules_before = set(sys.modules)
        values_before: dict[str, str | None] = {}
        for name, value, only_if_unset in self._plan.settings:
            if not only_if_unset or name not in os.environ:
                values_before.setdefault(name, os.environ.get(name))
                os.environ[name] = value
        printed_before = self._importer.printed
        self._import_all([Import(TORCH)], request, server)
        used = self._importer.used_variables
        self._import_dynamo(request, server)
        pairs = zip(self._importer.printed, printed_before)
        out, err = (after[len(before) :] for after, before in pairs)
        self._importer.printed = printed_before
        self._torch = PreloadedTorch(modules_before, used, (out, err))
        for name, old_value in values_before.items():
            if old_value is None:
                del os.environ[name]
            else:
                os.environ[name] = old_value

    def _import_dynamo(self, request: Prepare, server: Server) -> None:
        """Import torch._dynamo; if that fails, another server preloads everything else."""
        if not self._plan.imports_dynamo:
            return
        count = len(self._importer.loaded)
        try:
            self._import_all([Import(DYNAMO)], request, server)
        except CannotRunInPlace as error:
            self._retry(server, str(error), count)

    def _import_all(self, imports: Sequence[Import], request: Prepare, server: Server) -> None:
        try:
            self._importer.import_all(
                imports,
                cpus=request.cpus,
                per_worker_variables=request.per_worker_variables,
                on_begin=lambda name: server.report(ImportBegins(name)),
                on_read=lambda why: self._retry(server, why, len(self._importer.loaded)),
            )
        except ImportFailed as error:
            if request.preload != AUTO:
                raise
            self._retry(server, str(error), len(self._importer.loaded))

    def _retry(self, server: Server, why: str, count: int) -> NoReturn:
        """Exit; the agent starts another server, which imports only the first ``count`` modules."""
        self._report(server, CannotRunInPlace(why, costs_time=False), retry_first=count)
        os._exit(0)

    def _report(
        self, server: Server, trouble: CannotRunInPlace | None, retry_first: int | None = None
    ) -> None:
        """Report why workers are not forked; None: they are. ``retry_first``: as in ``Prepared``."""
        plan = self._plan
        server.report(
            Prepared(
                why=None if trouble is None else str(trouble),
                must_warn=trouble is not None and trouble.must_warn,
                costs_time=trouble is not None and trouble.costs_time,
                must_be_replaced=trouble is not None and self._has_begun,
                retry_first=retry_first,
                loaded=self._importer.loaded if trouble is None else (),
                left_to_workers=plan.left_to_workers,
                not_preloaded=plan.not_preloaded,
                why_not_preloaded=plan.why_not_preloaded,
                preload_option_helps=plan.preload_option_helps,
            )
        )
