"""What torch imports later, when a script begins to train: imported before the fork, too, where nobody can tell.

torch imports ``torch._dynamo``, 827 modules, when the first optimizer or DistributedDataParallel is made
(``_disable_dynamo`` in torch/_compile.py): without this, each rank does so after the fork. Whether a
script does that, and whether anything could come between, is decided by its text. A wrong guess costs
time, never a result: in doubt, the follower is left out. See docs/packages.md.
"""

from __future__ import annotations

import _ast
import os

from .leading_imports import MOST_BYTES, Import, children, imports_of, name_of
from .module_files import file_of, is_builtin_or_installed
from .packages import SAME_IF_IMPORTED_LATER, is_known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from .leading_imports import LeadingImports
    from .packages import Choice

FOLLOWER = "torch._dynamo"

SINCE = (2, 10)
"""The version of torch before which this import makes a folder for one process, which is on sys.path."""

USED_BY = frozenset(
    (
        *("optim", "DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP"),
        *("fully_shard", "Trainer", "Seq2SeqTrainer"),
    )
)
"""Names, of which a script that needs the follower has one in its text."""

_READ_WHOLE = frozenset(
    (
        *("CI", "CXX", "HOME", "LNAME", "LOGNAME", "USER", "USERNAME", "SAGE_ROOT", "TMPDIR"),
        *("TEMP", "TMP", "LOG_AUTOTUNE_RESULTS", "LOG_TLPARSE", "UNSAFE_SKIP_FSDP_MODULE_GUARDS"),
    )
)
_READ_BEGINNINGS = (
    *("TORCH", "PYTORCH", "AOT", "INDUCTOR", "PT2", "SYMPY", "MPMATH", "PYTHON", "_PYTHON"),
    *("TRITON", "CUTE", "CUTLASS", "PARTITIONER", "FAKE_", "ENABLE_", "DUMP_"),
)
_READ_LATER = (
    *("TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_CPP_", "PYTORCH_CUDA_ALLOC_CONF"),
    *("PYTORCH_ALLOC_CONF", "PYTHONHASHSEED"),
)

_TREAT_IMPORTED_MODULES_OTHERWISE = frozenset(
    (
        *("dictConfig", "fileConfig", "loggerDict", "setLoggerClass", "catch_warnings"),
        *("resetwarnings", "_ncallbacks", "chdir", "fchdir"),
        # Its options change the folder and set variables.
        "hydra",
    )
)

_RUN_ANY_CODE = frozenset(
    (
        *("import_module", "run_module", "run_path", "exec_module", "load_module", "__import__"),
        *("spec_from_file_location", "SourceFileLoader", "load_source", "entry_points", "exec"),
        *("locate", "resolve_name", "get_class", "get_method", "get_object", "instantiate"),
        *("LightningCLI", "hub"),
    )
)
_SET_ANY_VARIABLE = frozenset(("putenv", "unsetenv", "setenv", "delenv"))

_ENVIRON = frozenset(("environ", "environb"))
_READ_VARIABLES = frozenset(("get", "copy", "items", "keys", "values", "__contains__"))
_SET_A_VARIABLE = frozenset(("setdefault", "pop", "__setitem__", "__delitem__"))
_TAKE_A_COPY = frozenset(("dict", "len", "list", "set", "sorted", "print", "str", "repr", "bool"))
_START_A_PROGRAM = frozenset(("run", "Popen", "call", "check_call", "check_output"))

_DESTROY_A_GROUP = frozenset(("destroy_process_group", "end_training"))
"""Of torch, of accelerate."""


def reads(variable: str) -> bool:
    """Tell whether the follower's import reads or sets a variable, or one of that beginning."""
    if variable.startswith(_READ_LATER):
        return False
    return variable in _READ_WHOLE or variable.startswith(_READ_BEGINNINGS)


def add_followers(
    choice: Choice, reading: LeadingImports, arguments: Collection[str], *, has_gpus: bool
) -> None:
    """Add to what is preloaded what the script needs when it trains, or the reason against it.

    Args:
        choice: what is preloaded.
        reading: has read the script; reads the rest of the user's modules.
        arguments: of the worker's command.
        has_gpus: the job uses GPUs.

    """
    if not any(name.partition(".")[0] == "torch" for name in choice.names):
        return
    names = [name.encode() for name in USED_BY]
    if not any(name in text.source for text in reading.texts for name in names):
        return
    if not file_of(FOLLOWER):
        return
    if _version_of_torch() < SINCE:
        why = f"before torch {'.'.join(map(str, SINCE))} its import makes a folder for one process"
        choice.left_out.append((FOLLOWER, why))
        return
    seen = Seen(reading)
    why = seen.why_not() or _why_torch_may_hang(seen, arguments, has_gpus=has_gpus)
    if why:
        choice.left_out.append((FOLLOWER, why))
    elif not seen.names.isdisjoint(USED_BY):
        choice.followers.append(Import(FOLLOWER, ()))


def _version_of_torch() -> tuple[int, ...]:
    """Return the first two numbers of torch's version, as its version.py has them; () if it has not."""
    path = os.path.join(os.path.dirname(file_of("torch")), "version.py")
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("=") for line in file if line.startswith("__version__")]
        return tuple(int(part) for part in lines[0][2].strip(" \n'\"").split(".")[:2])
    except (OSError, ValueError, IndexError):
        return ()


def _why_torch_may_hang(seen: Seen, arguments: Collection[str], *, has_gpus: bool) -> str:
    """Return why a script may meet a race of torch 2.13 and gloo: see docs/packages.md.

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


class Seen:
    """What stands anywhere in the text of a script and of the user's modules that it imports."""

    def __init__(self, reading: LeadingImports) -> None:
        """Read what is left to read, and look through all of it, until something may do anything."""
        self.names: set[str] = set()
        """Variables, attributes, and names that are imported."""
        self.texts: set[str] = set()
        """Constants."""
        self.ends_something = False
        """Whether a method ``end`` is called, as transformers' Trainer has one."""
        self._variables: set[str] = set()
        """Of the environment, that are set or deleted."""
        self._unclear = ""
        """Why anything may happen."""
        self._moves_modules = self._imports_own = False
        """Whether the search path is changed, and whether modules of the user's are imported."""
        self._reading = reading
        self._read_main()
        # More texts come while one is looked through.
        for text in reading.texts:
            if self._unclear or reading.unreadable or reading.size > MOST_BYTES:
                return
            self._package = text.package
            self._look_through(text.tree)

    def why_not(self) -> str:
        """Return why the follower may differ if it is imported before the script begins; "": it can't."""
        if self._reading.unreadable:
            return f"{self._reading.unreadable} may do anything before it"
        if self._reading.size > MOST_BYTES:
            return "the script has too much text to read"
        if self._unclear:
            return self._unclear
        if self._moves_modules and self._imports_own:
            return "modules may come from another folder than it seems"
        read = sorted(filter(reads, self._variables))
        if read:
            return f"{read[0]} may be set before it"
        if "error" in self.texts and self.names & {"simplefilter", "filterwarnings"}:
            return "its warnings may be errors by then"
        found = self.names & _TREAT_IMPORTED_MODULES_OTHERWISE
        return f"the script uses {min(found)}" if found else ""

    def _read_main(self) -> None:
        """Read what ``python -m`` runs, of which the leading part may have ended in its package."""
        main = self._reading.module
        for name in (main, f"{main}.__main__") if main else ():
            if file_of(name) and not self._reading.read_also(Import(name, ())):
                self._may_run(main)

    def _may_run(self, what: str) -> None:
        self._unclear = self._unclear or f"{what} may run any code before it"

    def _may_set_any(self) -> None:
        self._unclear = self._unclear or "a variable that it reads may be set before it"

    def _look_through(self, tree: Any) -> None:
        waiting: list[tuple[Any, Any, Any]] = [(tree, None, None)]
        while waiting:
            node, parent, above = waiting.pop()
            if isinstance(node, _ast.If) and name_of(node.test) == "TYPE_CHECKING":
                waiting.extend((each, node, parent) for each in node.orelse)
                continue
            if isinstance(node, _ast.IfExp) and _asks_for_gpus(node):
                # 'nccl' if torch.cuda.is_available() else 'gloo': only used where there are GPUs.
                waiting.append((node.body, node, parent))
                continue
            self._note(node, parent, above)
            waiting.extend((part, node, parent) for part in children(node))

    def _note(self, node: Any, parent: Any, above: Any) -> None:
        if isinstance(node, (_ast.Import, _ast.ImportFrom)):
            self._note_import(node)
        elif isinstance(node, _ast.Constant) and isinstance(node.value, str):
            self.texts.add(node.value)
            if node.value in ("environ", "os.environ"):
                self._may_set_any()
        elif isinstance(node, _ast.Name):
            self._note_name(node.id)
            if node.id == "eval":
                # Not as a method: each model has one.
                self._may_run("eval")
        elif isinstance(node, _ast.Attribute):
            self._note_attribute(node, parent)
        elif isinstance(node, _ast.keyword) and node.arg == "trust_remote_code":
            self._may_run("trust_remote_code")
        if name_of(node) in _ENVIRON:
            self._note_environ(node, parent, above)

    def _note_name(self, name: str) -> None:
        self.names.add(name)
        if name in _RUN_ANY_CODE:
            self._may_run(name)
        elif name in _SET_ANY_VARIABLE:
            self._may_set_any()

    def _note_attribute(self, node: Any, parent: Any) -> None:
        self._note_name(node.attr)
        is_read = isinstance(node.ctx, _ast.Load)
        sets_item = isinstance(parent, _ast.Subscript) and not isinstance(parent.ctx, _ast.Load)
        path = _path_of(node)
        if path == "sys.path":
            is_put_first = isinstance(parent, _ast.Attribute) and parent.attr == "insert"
            self._moves_modules = self._moves_modules or not is_read or sets_item or is_put_first
        elif path == "sys.modules" and sets_item:
            self._may_run("what replaces a module")
        elif not is_read and path.startswith(("torch.", "builtins.")):
            if not path.startswith("torch.backends."):
                self._may_run(f"what replaces {path}")
        elif node.attr == "end" and isinstance(parent, _ast.Call):
            self.ends_something = True

    def _note_import(self, statement: Any) -> None:
        for alias in statement.names:
            if alias.name in _ENVIRON and alias.asname:
                self._may_set_any()
        for wanted in imports_of(statement, self._package):
            for name in (*wanted.name.split("."), *wanted.names):
                self._note_name(name)
            package = wanted.name.partition(".")[0]
            is_fine = is_known(package) or package in SAME_IF_IMPORTED_LATER
            is_own = package and not is_builtin_or_installed(package)
            if is_own and (file_of(package) or not is_fine):
                self._imports_own = True
                is_fine = self._reading.read_also(wanted)
            if not is_fine:
                self._unclear = (
                    self._unclear or f"{package or 'a module'} may be imported before it"
                )

    def _note_environ(self, node: Any, parent: Any, above: Any) -> None:
        """Note which variables an expression with ``os.environ`` sets, if any."""
        names: list[Any] | None = None
        if isinstance(parent, _ast.Subscript) and parent.value is node:
            names = [] if isinstance(parent.ctx, _ast.Load) else [_index_of(parent)]
        elif isinstance(parent, _ast.Attribute):
            names = _set_by_call(parent, above)
        elif _only_reads(node, parent, above):
            names = []
        for name in [None] if names is None else names:
            value = getattr(name, "value", None)
            if isinstance(value, (str, bytes)):
                self._variables.add(os.fsdecode(value))
            else:
                self._may_set_any()


def _set_by_call(method: Any, call: Any) -> list[Any] | None:
    """Return the names of the variables that ``os.environ.METHOD(...)`` sets; None: any."""
    name = method.attr
    if name in _READ_VARIABLES:
        return []
    if not isinstance(call, _ast.Call) or call.func is not method:
        return None
    if name in _SET_A_VARIABLE and call.args:
        return [call.args[0]]
    if name == "update":
        given = [_ast.Constant(value=each.arg) for each in call.keywords if each.arg]
        dicts = [each for each in call.args if isinstance(each, _ast.Dict)]
        if len(dicts) == len(call.args) and len(given) == len(call.keywords):
            return [*given, *(key for each in dicts for key in each.keys)]
    return None


def _only_reads(node: Any, parent: Any, above: Any) -> bool:
    """Tell whether what stands around ``os.environ`` takes its variables only."""
    if isinstance(parent, _ast.Call):
        takes_a_copy = isinstance(parent.func, _ast.Name) and parent.func.id in _TAKE_A_COPY
        return node in parent.args and takes_a_copy
    if isinstance(parent, _ast.keyword):
        # subprocess.run(env=os.environ), and f(**os.environ).
        return not parent.arg or (parent.arg == "env" and name_of(above.func) in _START_A_PROGRAM)
    if isinstance(parent, (_ast.For, _ast.comprehension)):
        return parent.iter is node
    if isinstance(parent, _ast.Dict):
        return node not in [v for k, v in zip(parent.keys, parent.values) if k is not None]
    return isinstance(parent, (_ast.Compare, _ast.BinOp, _ast.FormattedValue))


def _asks_for_gpus(choice: Any) -> bool:
    """Tell whether this is ``A if torch.cuda.is_available() else B``."""
    test = choice.test
    asks = isinstance(test, _ast.Call) and _path_of(test.func) == "torch.cuda.is_available"
    return asks and isinstance(choice.orelse, _ast.Constant)


def _index_of(subscript: Any) -> Any:
    index = subscript.slice
    # Python 3.8 has a node around it.
    return getattr(index, "value", index) if type(index).__name__ == "Index" else index


def _path_of(node: Any) -> str:
    """Return "a.b.c" of a name or an attribute; "" of what does not begin with a name."""
    parts = []
    while isinstance(node, _ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, _ast.Name) else ""
