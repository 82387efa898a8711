"""Whether torch._dynamo can be imported before the fork.

Torch imports it, 827 modules, when the first optimizer or DistributedDataParallel is made
(``_disable_dynamo`` in torch/_compile.py). Without this module each rank would do that after the fork. The
text of the script and of the user's modules shows whether it will be needed, and whether the script sets
before it what that import reads. See docs/binding.md.
"""

from __future__ import annotations

import _ast
import os

from .module_files import file_of
from .script_walk import (
    children,
    constant_text,
    dotted_name,
    index_of,
    is_for_type_checkers,
    last_name,
)
from .torch_variables import DYNAMO, TORCH, dynamo_reads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from .script_walk import ScriptWalk

SINCE = (2, 10)
"""Before this version of torch, the import makes a folder for one process and puts it on sys.path."""

FREE_OF_THE_RACE = (2, 15)
"""From this version of torch on, a rank that destroys its gloo group can't hang: see docs/binding.md."""

USED_BY = frozenset(
    (
        *("optim", "DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP"),
        *("fully_shard", "Trainer", "Seq2SeqTrainer"),
    )
)
"""A script that needs torch._dynamo mentions one of these names."""

_CHANGE_ALL_LOGGERS = frozenset(
    ("dictConfig", "fileConfig", "loggerDict", "setLoggerClass", "_ncallbacks")
)
"""Names whose use has a different effect once the modules are imported."""

_SET_ANY_VARIABLE = frozenset(("putenv", "unsetenv", "setenv", "delenv"))

_ENVIRON = frozenset(("environ", "environb"))
_READ_VARIABLES = frozenset(("get", "copy", "items", "keys", "values", "__contains__"))
_SET_A_VARIABLE = frozenset(("setdefault", "pop", "__setitem__", "__delitem__"))

_FILTER_WARNINGS = frozenset(("simplefilter", "filterwarnings"))

_DESTROY_A_GROUP = frozenset(("destroy_process_group", "end_training"))
"""Functions of torch and accelerate."""


def check_dynamo(
    walk: ScriptWalk, command: Collection[str], *, has_gpus: bool
) -> tuple[bool, str | None]:
    """Return whether torch._dynamo is needed, and why it can't be imported before the fork, if so.

    Args:
        walk: has read the script; this function reads all other modules of the user.
        command: of a worker.
        has_gpus: the workers have GPUs.

    """
    if not file_of(DYNAMO):
        return False, None
    walk.read_remaining_modules()
    if walk.unread:
        return True, walk.unread
    facts = _TextFacts(walk)
    if facts.names.isdisjoint(USED_BY):
        return False, None
    version = _torch_version()
    if version < SINCE:
        since = ".".join(map(str, SINCE))
        return True, f"before torch {since} its import makes a folder for one process"
    why_not = facts.why_not()
    if why_not is None and version < FREE_OF_THE_RACE:
        why_not = _why_torch_may_hang(facts, command, has_gpus=has_gpus)
    return True, why_not


def _torch_version() -> tuple[int, ...]:
    """Return the first two numbers of torch's version, from its version.py; () if they are not there."""
    path = os.path.join(os.path.dirname(file_of(TORCH) or ""), "version.py")
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("=") for line in file if line.startswith("__version__")]
        return tuple(int(number) for number in lines[0][2].strip(" \n'\"").split(".")[:2])
    except (OSError, ValueError, IndexError):
        return ()


def _why_torch_may_hang(
    facts: _TextFacts, command: Collection[str], *, has_gpus: bool
) -> str | None:
    """Return why a script may hit a race between torch and gloo at its end: see docs/binding.md.

    torch._dynamo imports a module whose functions have the current group as a default argument. An import
    after init_process_group thus keeps the group, and gloo's threads, until the process ends.
    """
    words = [word.lower() for word in facts.names | facts.constants]
    names_nccl = any("nccl" in word for word in words)
    names_gloo = any("gloo" in word for word in (*words, *map(str.lower, command)))
    if has_gpus and names_nccl and not names_gloo:
        return None
    calls = (facts.names | facts.constants) & _DESTROY_A_GROUP
    if facts.calls_end and not facts.names.isdisjoint(("Trainer", "Seq2SeqTrainer")):
        calls = calls | {"end"}
    if not calls:
        return None
    return (
        f"with gloo, torch may hang after {min(calls)} unless a late import keeps the process group"
        " alive"
    )


class _TextFacts:
    """What occurs anywhere in the text of a script and of the user's modules that it imports."""

    def __init__(self, walk: ScriptWalk) -> None:
        self.names: set[str] = set()
        """Variables, attributes, and imported names."""
        self.constants: set[str] = set()
        """Texts."""
        self.calls_end = False
        """Whether a method ``end`` is called, as of transformers' Trainer."""
        self._makes_warnings_errors = False
        self._variables: set[str] = set()
        """Environment variables that are set or deleted; "" stands for an unknown name."""
        for source in walk.sources:
            for wanted in source.imports(source.tree):
                self.names.update((*wanted.name.split("."), *wanted.names))
            self._read(source.tree)

    def why_not(self) -> str | None:
        """Return why torch._dynamo may differ if it is imported before the script begins."""
        found = self.names & _CHANGE_ALL_LOGGERS
        if found:
            return f"the script uses {min(found)}"
        if "" in self._variables or self.names & _SET_ANY_VARIABLE:
            return "a variable that it reads may be set before it is imported"
        read = sorted(filter(dynamo_reads, self._variables))
        if read:
            return f"{read[0]} may be set before it is imported"
        if self._makes_warnings_errors:
            return "its warnings may be errors by then"
        return None

    def _read(self, tree: Any) -> None:
        # Each node with its parent and grandparent.
        waiting: list[tuple[Any, Any, Any]] = [(tree, None, None)]
        while waiting:
            node, parent, grandparent = waiting.pop()
            if is_for_type_checkers(node):
                waiting.extend((each, node, parent) for each in node.orelse)
                continue
            if isinstance(node, _ast.IfExp) and _tests_for_gpus(node):
                # 'nccl' if torch.cuda.is_available() else 'gloo': matters only where there are GPUs.
                waiting.append((node.body, node, parent))
                continue
            self._note(node, parent, grandparent)
            waiting.extend((child, node, parent) for child in children(node))

    def _note(self, node: Any, parent: Any, grandparent: Any) -> None:
        self.names.add(last_name(node))
        self.constants.add(constant_text(node))
        if isinstance(node, _ast.Call) and last_name(node.func) in _FILTER_WARNINGS:
            actions = [*node.args[:1], *(each.value for each in node.keywords)]
            if any(constant_text(each) == "error" for each in actions):
                self._makes_warnings_errors = True
        elif last_name(node) in _ENVIRON and isinstance(node, (_ast.Name, _ast.Attribute)):
            self._variables.update(_variables_set(node, parent, grandparent))
        elif isinstance(node, _ast.Attribute) and node.attr == "end":
            self.calls_end = self.calls_end or isinstance(parent, _ast.Call)


def _variables_set(node: Any, parent: Any, grandparent: Any) -> list[str]:
    """Return the variables that the expression around ``os.environ`` sets; "" stands for any."""
    if isinstance(parent, _ast.Subscript) and parent.value is node:
        is_read = isinstance(parent.ctx, _ast.Load)
        return [] if is_read else [constant_text(index_of(parent))]
    if isinstance(parent, (_ast.Assign, _ast.NamedExpr, _ast.AugAssign)):
        # It may give os.environ another name.
        return [""]
    if not isinstance(parent, _ast.Attribute) or parent.attr in _READ_VARIABLES:
        return []
    is_call = isinstance(grandparent, _ast.Call) and grandparent.func is parent
    if is_call and parent.attr in _SET_A_VARIABLE and grandparent.args:
        return [constant_text(grandparent.args[0])]
    if is_call and parent.attr == "update":
        dicts = [each for each in grandparent.args if isinstance(each, _ast.Dict)]
        if len(dicts) == len(grandparent.args):
            keys = [constant_text(key) for each in dicts for key in each.keys]
            return [*keys, *(each.arg or "" for each in grandparent.keywords)]
    return [""]


def _tests_for_gpus(choice: Any) -> bool:
    """Tell whether this is ``A if torch.cuda.is_available() else B``."""
    test = choice.test
    asks = isinstance(test, _ast.Call) and dotted_name(test.func) == "torch.cuda.is_available"
    return asks and isinstance(choice.orelse, _ast.Constant)
