"""Whether torch._dynamo can be imported before the fork, too.

torch imports it, 827 modules, when the first optimizer or DistributedDataParallel is made
(``_disable_dynamo`` in torch/_compile.py): without this, each rank does so after the fork. Whether a
script does that, and whether it sets before what that import reads, is decided by its text and that of
the user's modules. See docs/binding.md.
"""

from __future__ import annotations

import _ast
import os

from .module_files import file_of
from .script_walk import (
    children,
    index_of,
    is_for_type_checkers,
    name_of,
    path_of,
    text_of_constant,
)
from .torch_variables import DYNAMO, TORCH, dynamo_reads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from .script_walk import ScriptWalk

SINCE = (2, 10)
"""The version of torch before which this import makes a folder for one process, which is on sys.path."""

FREE_OF_THE_RACE = (2, 15)
"""The version of torch from which a rank that destroys its group with gloo ends: see docs/binding.md."""

USED_BY = frozenset(
    (
        *("optim", "DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP"),
        *("fully_shard", "Trainer", "Seq2SeqTrainer"),
    )
)
"""Names, of which a script that needs the follower has one in its text."""

_TREAT_IMPORTED_MODULES_OTHERWISE = frozenset(
    ("dictConfig", "fileConfig", "loggerDict", "setLoggerClass", "_ncallbacks")
)
_SET_ANY_VARIABLE = frozenset(("putenv", "unsetenv", "setenv", "delenv"))

_ENVIRON = frozenset(("environ", "environb"))
_READ_VARIABLES = frozenset(("get", "copy", "items", "keys", "values", "__contains__"))
_SET_A_VARIABLE = frozenset(("setdefault", "pop", "__setitem__", "__delitem__"))

_FILTER_WARNINGS = frozenset(("simplefilter", "filterwarnings"))

_DESTROY_A_GROUP = frozenset(("destroy_process_group", "end_training"))
"""Of torch, of accelerate."""


def dynamo_obstacle(walk: ScriptWalk, arguments: Collection[str], *, has_gpus: bool) -> str | None:
    """Return why the follower is left to each worker; "": it is not; None: the script needs none.

    Args:
        walk: has read the script; reads the rest of the user's modules.
        arguments: of the worker's command.
        has_gpus: the workers have GPUs.

    """
    if not file_of(DYNAMO):
        return None
    walk.read_rest()
    if walk.unread:
        return walk.unread
    seen = _Seen(walk)
    if seen.names.isdisjoint(USED_BY):
        return None
    version = _version_of_torch()
    if version < SINCE:
        since = ".".join(map(str, SINCE))
        return f"before torch {since} its import makes a folder for one process"
    why_not = seen.why_not()
    if why_not or version >= FREE_OF_THE_RACE:
        return why_not
    return _why_torch_may_hang(seen, arguments, has_gpus=has_gpus)


def _version_of_torch() -> tuple[int, ...]:
    """Return the first two numbers of torch's version, as its version.py has them; () if it has not."""
    path = os.path.join(os.path.dirname(file_of(TORCH)), "version.py")
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("=") for line in file if line.startswith("__version__")]
        return tuple(int(part) for part in lines[0][2].strip(" \n'\"").split(".")[:2])
    except (OSError, ValueError, IndexError):
        return ()


def _why_torch_may_hang(seen: _Seen, arguments: Collection[str], *, has_gpus: bool) -> str:
    """Return why a script may meet a race of torch and gloo: see docs/binding.md.

    torch._dynamo imports a module whose functions take the group as it is then as a default: an import
    after init_process_group keeps the group, and gloo's threads, until the process ends.
    """
    words = [word.lower() for word in seen.names | seen.texts]
    names_nccl = any("nccl" in word for word in words)
    names_gloo = any("gloo" in word for word in (*words, *map(str.lower, arguments)))
    if has_gpus and names_nccl and not names_gloo:
        return ""
    calls = (seen.names | seen.texts) & _DESTROY_A_GROUP
    if seen.ends_something and not seen.names.isdisjoint(("Trainer", "Seq2SeqTrainer")):
        calls = calls | {"end"}
    if not calls:
        return ""
    return f"torch may hang after {min(calls)} with gloo if the group is not kept by a late import"


class _Seen:
    """What stands anywhere in the text of a script and of the user's modules that it imports."""

    def __init__(self, walk: ScriptWalk) -> None:
        self.names: set[str] = set()
        """Variables, attributes, and names that are imported."""
        self.texts: set[str] = set()
        """Constants."""
        self.ends_something = False
        """Whether a method ``end`` is called, as transformers' Trainer has one."""
        self._warnings_are_errors = False
        self._variables: set[str] = set()
        """Of the environment, that are set or deleted; "": one whose name is not a plain text."""
        for text in walk.texts:
            for wanted in text.imports(text.tree):
                self.names.update((*wanted.name.split("."), *wanted.names))
            self._look_through(text.tree)

    def why_not(self) -> str:
        """Return why the follower may differ if it is imported before the script begins; "": it can't."""
        found = self.names & _TREAT_IMPORTED_MODULES_OTHERWISE
        if found:
            return f"the script uses {min(found)}"
        if "" in self._variables or self.names & _SET_ANY_VARIABLE:
            return "a variable that it reads may be set before it"
        read = sorted(filter(dynamo_reads, self._variables))
        if read:
            return f"{read[0]} may be set before it"
        if self._warnings_are_errors:
            return "its warnings may be errors by then"
        return ""

    def _look_through(self, tree: Any) -> None:
        waiting: list[tuple[Any, Any, Any]] = [(tree, None, None)]
        while waiting:
            node, parent, above = waiting.pop()
            if is_for_type_checkers(node):
                waiting.extend((each, node, parent) for each in node.orelse)
                continue
            if isinstance(node, _ast.IfExp) and _asks_for_gpus(node):
                # 'nccl' if torch.cuda.is_available() else 'gloo': only used where there are GPUs.
                waiting.append((node.body, node, parent))
                continue
            self._note(node, parent, above)
            waiting.extend((part, node, parent) for part in children(node))

    def _note(self, node: Any, parent: Any, above: Any) -> None:
        self.names.add(name_of(node))
        self.texts.add(text_of_constant(node))
        if isinstance(node, _ast.Call) and name_of(node.func) in _FILTER_WARNINGS:
            actions = [*node.args[:1], *(each.value for each in node.keywords)]
            is_error = any(text_of_constant(each) == "error" for each in actions)
            self._warnings_are_errors = self._warnings_are_errors or is_error
        elif name_of(node) in _ENVIRON and isinstance(node, (_ast.Name, _ast.Attribute)):
            self._variables.update(_set_around(node, parent, above))
        elif isinstance(node, _ast.Attribute) and node.attr == "end":
            self.ends_something = self.ends_something or isinstance(parent, _ast.Call)


def _set_around(node: Any, parent: Any, above: Any) -> list[str]:
    """Return the variables that an expression around ``os.environ`` sets; "": any."""
    if isinstance(parent, _ast.Subscript) and parent.value is node:
        is_read = isinstance(parent.ctx, _ast.Load)
        return [] if is_read else [text_of_constant(index_of(parent))]
    if isinstance(parent, (_ast.Assign, _ast.NamedExpr, _ast.AugAssign)):
        # Also another name for it.
        return [""]
    if not isinstance(parent, _ast.Attribute) or parent.attr in _READ_VARIABLES:
        return []
    is_call = isinstance(above, _ast.Call) and above.func is parent
    if is_call and parent.attr in _SET_A_VARIABLE and above.args:
        return [text_of_constant(above.args[0])]
    if is_call and parent.attr == "update":
        dicts = [each for each in above.args if isinstance(each, _ast.Dict)]
        if len(dicts) == len(above.args):
            keys = [text_of_constant(key) for each in dicts for key in each.keys]
            return [*keys, *(each.arg or "" for each in above.keywords)]
    return [""]


def _asks_for_gpus(choice: Any) -> bool:
    """Tell whether this is ``A if torch.cuda.is_available() else B``."""
    test = choice.test
    asks = isinstance(test, _ast.Call) and path_of(test.func) == "torch.cuda.is_available"
    return asks and isinstance(choice.orelse, _ast.Constant)
