"""Which of the leading imports are preloaded, by ``--preload``, and why the others are not."""

from __future__ import annotations

import os

from .known_packages import (
    NEVER_TRIED,
    PATCHES_OTHERS,
    SAME_AFTER_A_FORK,
    SAME_IF_IMPORTED_LATER,
    WORTH_A_FORK,
)
from .leading_imports import Import
from .module_files import is_standard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .leading_imports import LeadingImports


AUTO = "auto"
ALL = "all"
NONE = "none"


class Choice:
    """What is preloaded, in order, and what is left to each worker."""

    def __init__(self) -> None:
        self.imports: list[Import] = []
        self.left_out: list[tuple[str, str]] = []
        """Leading imports that each worker imports itself, each with the reason."""
        self.why_spawn = ""
        """Why a fork would not be faster; "" if it is."""
        self.stopped_by = ""
        """What ends the list of imports before the script ends, and why."""

    @property
    def is_known(self) -> bool:
        """Whether all of it is on the verified list."""
        return all(_is_known(_package(wanted)) for wanted in self.imports)

    def stop(self, name: str, why: str) -> None:
        """Leave ``name``, and all that the script imports after it, to the workers."""
        self.left_out.append((f"{name} and what is imported after it", why))
        self.stopped_by = f"{name}: {why}"


def choose(preload: str | tuple[str, ...], reading: LeadingImports, workers: int) -> Choice:
    """Choose by ``preload``: ``auto``, ``all``, ``none`` or the names of modules."""
    choice = Choice()
    if not isinstance(preload, str):
        choice.imports = [Import(name, ()) for name in preload]
    elif preload == ALL:
        _choose_all(reading, choice)
    elif preload == AUTO:
        _choose_known(reading, choice)
        _prefer_spawn_where_it_is_as_fast(reading, choice, workers)
    return choice


def _choose_all(reading: LeadingImports, choice: Choice) -> None:
    for wanted in reading.found:
        why = NEVER_TRIED.get(_package(wanted))
        if why:
            choice.stop(wanted.name, why)
            return
        choice.imports.append(wanted)
    _note_where_reading_stopped(reading, choice)


def _choose_known(reading: LeadingImports, choice: Choice) -> None:
    for wanted in reading.found:
        package = _package(wanted)
        if _is_known(package):
            choice.imports.append(wanted)
        elif package in SAME_IF_IMPORTED_LATER:
            choice.left_out.append((wanted.name, SAME_IF_IMPORTED_LATER[package]))
        else:
            unknown = "it is not on the list of packages that may be imported before a fork"
            known = {**PATCHES_OTHERS, **NEVER_TRIED}
            choice.stop(wanted.name, known.get(package, unknown))
            return
    _note_where_reading_stopped(reading, choice)


def _note_where_reading_stopped(reading: LeadingImports, choice: Choice) -> None:
    if reading.imports_follow:
        where = os.path.basename(reading.stopped_at)
        choice.left_out.append((f"what is imported from {where} on", "that line may do anything"))
        choice.stopped_by = f"{where}: that line may do anything"


def _prefer_spawn_where_it_is_as_fast(
    reading: LeadingImports, choice: Choice, workers: int
) -> None:
    """Set ``why_spawn`` unless several workers share an import that takes time, or need none."""
    if workers == 1:
        choice.why_spawn = "a single worker shares its imports with no other"
    elif any(_package(wanted) in WORTH_A_FORK for wanted in choice.imports):
        return
    elif choice.stopped_by:
        choice.why_spawn = f"nothing that takes time is imported before {choice.stopped_by}"
    elif not reading.needs_only_python:
        choice.why_spawn = "nothing that takes time is among what the script imports first"
    else:
        # All that the script imports is imported too quickly for a process of its own.
        choice.imports = []


def _is_known(package: str) -> bool:
    return package in SAME_AFTER_A_FORK or is_standard(package)


def _package(wanted: Import) -> str:
    return wanted.name.partition(".")[0]
