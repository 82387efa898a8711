"""What is imported before workers are forked, and why the rest is not."""

from __future__ import annotations

from .dynamo import dynamo_obstacle
from .module_files import is_stdlib
from .packages import FORK_SAFE, SLOW_TO_IMPORT, Import
from .script_walk import ScriptWalk
from .torch_variables import DYNAMO, TORCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..messages import Prepare

AUTO = "auto"


class PreloadPlan:
    """What is preloaded, in order, and what is left to each worker."""

    def __init__(self) -> None:
        self.imports: list[Import] = []
        """What workers may take as it is."""
        self.torch: list[Import] = []
        """torch, if the script may do something before it imports it: each worker checks that."""
        self.sets: list[tuple[str, str, bool]] = []
        """Variables that the script sets to a constant before: as in ``ScriptWalk``."""
        self.followers: list[Import] = []
        """What is imported last, and need not be."""
        self.left_out: list[tuple[str, str]] = []
        """What each worker imports itself, with the reason."""
        self.not_preloaded = ""
        """A module that takes time and that each worker imports itself."""
        self.why_not_preloaded = ""
        """The reason: a line of the script and what it does, or why the import can't be made."""
        self.preload_option_helps = True
        """Whether ``--preload NAME`` imports it once all the same."""
        self.why_spawn = ""
        """Why a fork would not be faster; "" if it is."""

    @property
    def in_order(self) -> list[Import]:
        return [*self.imports, *self.torch, *self.followers]

    @property
    def names(self) -> list[str]:
        return [wanted.name for wanted in self.in_order]

    @property
    def packages(self) -> set[str]:
        return {wanted.package for wanted in self.in_order}

    @property
    def has_torch(self) -> bool:
        return TORCH in self.packages

    @property
    def is_known(self) -> bool:
        """Whether all of it is on the verified list."""
        return all(each in FORK_SAFE or is_stdlib(each) for each in self.packages)

    def keep_first(self, count: int, why: str) -> None:
        """Preload so many only: the next one can't be imported before the fork, says ``why``."""
        if count >= len(self.in_order):
            # What is remembered of the script has changed meanwhile.
            return
        left, has_torch = self.in_order[count], self.has_torch
        and_others = " and what is imported after it" if left in self.imports else ""
        self.left_out.insert(0, (f"{left.name}{and_others}", why))
        kept, package = self.in_order[:count], left.package
        self.imports = [each for each in self.imports if each in kept]
        self.torch = [each for each in self.torch if each in kept]
        self.followers = []
        if has_torch and not self.has_torch:
            package = TORCH
        if package in SLOW_TO_IMPORT and package not in self.packages:
            self.not_preloaded, self.why_not_preloaded, self.preload_option_helps = (
                package,
                why,
                False,
            )


def choose(request: Prepare, walk: ScriptWalk, remembered: str = "") -> PreloadPlan:
    """Choose what is imported before the fork.

    Args:
        request: the agent's.
        walk: has read the script.
        remembered: what the script is known to change before it imports torch.

    """
    preload = request.preload
    choice = PreloadPlan()
    if not isinstance(preload, str):
        choice.imports = [Import(name, ()) for name in preload]
    elif preload == AUTO:
        _choose_known(walk, choice, remembered)
        _prefer_spawn_where_it_is_as_fast(walk, choice, request.workers)
    if choice.has_torch and DYNAMO not in choice.names and not choice.why_spawn:
        why = dynamo_obstacle(walk, request.command, has_gpus=request.has_gpus)
        if why:
            choice.left_out.append((DYNAMO, why))
        elif why is not None:
            choice.followers.append(Import(DYNAMO, ()))
    return choice


def _choose_known(walk: ScriptWalk, choice: PreloadPlan, remembered: str) -> None:
    choice.imports = list(walk.found)
    choice.left_out = list(walk.left_out)
    if walk.imports_torch:
        why = walk.obstacle or remembered
        if why:
            choice.not_preloaded, choice.why_not_preloaded = TORCH, why
        else:
            choice.torch, choice.sets = [Import(TORCH, ())], walk.sets
    slow = next((name for name in walk.slow_after_side_effect if name not in choice.packages), "")
    if slow and not choice.has_torch and not choice.not_preloaded:
        choice.not_preloaded = slow
        choice.why_not_preloaded = (
            f"{walk.first_side_effect} may do anything before {slow} is imported"
        )


def _prefer_spawn_where_it_is_as_fast(walk: ScriptWalk, choice: PreloadPlan, workers: int) -> None:
    """Set ``why_spawn`` unless several workers share an import that takes time, or need none."""
    if workers == 1:
        choice.why_spawn = "a single worker shares its imports with no other"
    elif not choice.packages.isdisjoint(SLOW_TO_IMPORT):
        return
    elif choice.why_not_preloaded:
        choice.why_spawn = choice.why_not_preloaded
    elif walk.imports_only_stdlib:
        # All that the script imports is imported too quickly for a process of its own.
        choice.imports = []
    else:
        nothing = "nothing that takes time is among what the script imports"
        choice.why_spawn = walk.unread or nothing
