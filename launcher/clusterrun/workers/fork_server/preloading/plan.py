"""Which modules are imported before workers are forked, and why the others are not."""

from __future__ import annotations

from .dynamo import check_dynamo
from .module_files import is_stdlib
from .packages import FORK_SAFE, SLOW_TO_IMPORT, Import
from .script_walk import ScriptWalk
from .torch_variables import DYNAMO, TORCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..messages import Prepare
    from .script_walk import Setting

AUTO = "auto"


class PreloadPlan:
    """The modules to preload, in order, and those left to each worker."""

    def __init__(self) -> None:
        self.imports: list[Import] = []
        """What is imported first; workers find these modules imported."""
        self.hides_torch = False
        """Whether torch is imported next, and hidden from the script until the script imports it."""
        self.settings: list[Setting] = []
        """Variables that the script sets before it imports torch."""
        self.imports_dynamo = False
        """Whether torch._dynamo is imported last."""
        self.left_to_workers: list[tuple[str, str]] = []
        """What each worker imports itself, with the reason."""
        self.not_preloaded: str | None = None
        """A slow module that each worker imports itself."""
        self.why_not_preloaded: str | None = None
        """The reason: a line of the script and its effect, or why the import can't be made."""
        self.preload_option_helps = True
        """Whether ``--preload NAME`` imports it once."""
        self.why_spawn: str | None = None
        """Why forking would not be faster than spawning, if it is not."""

    @property
    def in_order(self) -> list[Import]:
        torch = [Import(TORCH)] if self.hides_torch else []
        dynamo = [Import(DYNAMO)] if self.imports_dynamo else []
        return [*self.imports, *torch, *dynamo]

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.in_order]

    @property
    def packages(self) -> set[str]:
        return {each.package for each in self.in_order}

    @property
    def is_verified(self) -> bool:
        """Whether all modules are on the verified list."""
        return all(each in FORK_SAFE or is_stdlib(each) for each in self.packages)

    def keep_first(self, count: int, why: str) -> None:
        """Preload only the first ``count`` modules; ``why``: why the next one can't be preloaded."""
        if count >= len(self.in_order):
            # The cache has a new entry for the script.
            return
        removed, package = self.in_order[count], self.in_order[count].package
        is_early, had_torch = count < len(self.imports), TORCH in self.packages
        and_later = " and what is imported after it" if is_early else ""
        self.left_to_workers.insert(0, (f"{removed.name}{and_later}", why))
        self.hides_torch = self.hides_torch and count > len(self.imports)
        self.imports_dynamo = False
        del self.imports[count:]
        if had_torch and TORCH not in self.packages:
            package = TORCH
        if package in SLOW_TO_IMPORT and package not in self.packages:
            self.not_preloaded, self.why_not_preloaded = package, why
            self.preload_option_helps = False


def plan_preload(
    request: Prepare, walk: ScriptWalk, why_reexecuted: str | None = None
) -> PreloadPlan:
    """Decide what is imported before the fork.

    Args:
        request: of the agent.
        walk: has read the script.
        why_reexecuted: what the script is known to change before it imports torch.

    """
    plan = PreloadPlan()
    if not isinstance(request.preload, str):
        plan.imports = [Import(name) for name in request.preload]
    elif request.preload == AUTO:
        _plan_by_script(walk, plan, why_reexecuted)
        plan.why_spawn = _why_spawn(walk, plan, request.workers)
    if TORCH in plan.packages and DYNAMO not in plan.names and not plan.why_spawn:
        is_needed, obstacle = check_dynamo(walk, request.command, has_gpus=request.has_gpus)
        if obstacle:
            plan.left_to_workers.append((DYNAMO, obstacle))
        plan.imports_dynamo = is_needed and not obstacle
    return plan


def _plan_by_script(walk: ScriptWalk, plan: PreloadPlan, why_reexecuted: str | None) -> None:
    plan.imports = list(walk.preloadable)
    plan.left_to_workers = list(walk.left_to_workers)
    if walk.imports_torch:
        why = walk.obstacle or why_reexecuted
        if why:
            plan.not_preloaded, plan.why_not_preloaded = TORCH, why
        else:
            plan.hides_torch, plan.settings = True, walk.settings
    slow = next((name for name in walk.slow_after_side_effect if name not in plan.packages), None)
    if slow and TORCH not in plan.packages and not plan.not_preloaded:
        plan.not_preloaded = slow
        plan.why_not_preloaded = (
            f"{walk.first_side_effect} may have side effects before {slow} is imported"
        )


def _why_spawn(walk: ScriptWalk, plan: PreloadPlan, workers: int) -> str | None:
    """Return why forking would not be faster: workers must share a slow import, or need no import."""
    if workers == 1:
        return "with a single worker there are no imports to share"
    if not plan.packages.isdisjoint(SLOW_TO_IMPORT):
        return None
    if plan.why_not_preloaded:
        return plan.why_not_preloaded
    if walk.imports_only_stdlib:
        # Its imports are quick; a fork alone is faster than an interpreter for each worker.
        plan.imports = []
        return None
    return walk.unread or "the script imports nothing that is slow to import"
