"""Translate a call from Python: keywords to options, the function to bytes, imports to preloads.

cloudpickle sends functions and classes of ``__main__`` or of a notebook, lambdas and closures by value;
those of modules by name.
"""

import os
import pickle
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import iscoroutinefunction, isfunction
from types import MappingProxyType
from typing import Any, NamedTuple

from clusterrun.clients.python.wire import dumps
from clusterrun.errors import UsageError
from clusterrun.job.declarations import Row, Setting, format_value
from clusterrun.job.nested_launches import outer_launch_variables
from clusterrun.job.options import NAMES, NodeLauncher
from clusterrun.job.removed_options import REMOVED_OPTIONS
from clusterrun.job.sources import (
    PREFIX,
    TORCHRUN_PREFIX,
    CommandLine,
    Layer,
    collected,
    from_variables,
    value_of,
)
from clusterrun.job.suggestions import closest
from clusterrun.workers.fork_server.preloading.packages import (
    ENDS_PRELOADING,
    FORK_SAFE,
    SLOW_TO_IMPORT,
)

_REFUSED = {
    **dict.fromkeys(
        ("module", "no_python", "run_path", "pass_local_rank", "exec"),
        "its function is the program",
    ),
    **dict.fromkeys(("dry_run", "json", "machine_root"), "to see a plan, use clusterrun --dry-run"),
    "pdb": "use clusterrun --pdb with a script",
}
"""Options that a call can't set, and why."""

ROWS = {name: row for name, row in NAMES.items() if row.name not in _REFUSED}
"""The options that a call may set, by all their names."""

_PRELOAD_OPTIONS = {"preload", "start_method"}

_RANK_IMPORTS = {"cloudpickle"}
"""Modules that rank.py imports."""


_TEXTS = (str, bytes, os.PathLike)


def options_from_keywords(function: str, keywords: Mapping[str, object]) -> Layer:
    """Return the options that keywords set, each with its name as origin; None and False set nothing.

    Args:
        function: the public function that the user has called, for messages.
        keywords: its keyword arguments that are options.

    Raises:
        TypeError: an option is unknown, or cannot be set from Python.

    """
    found = []
    for name, value in keywords.items():
        if name not in ROWS:
            raise TypeError(_refusal(function, name))
        if value is not None and value is not False:
            row = ROWS[name]
            found += [(row, Setting(text, name)) for text in _option_values(row, name, value)]
    return collected(found)


def _option_values(row: Row, name: str, value: object) -> Iterable[str]:
    if not row.metavar and value is not True:
        raise TypeError(f"{name} must be True or False, not {value!r}")
    if row.value.repeated:
        return _values(value)
    if name == "preload" and not value:
        return ["none"]
    if isinstance(value, Iterable) and not isinstance(value, _TEXTS):
        return [row.value.join(_values(value))]
    return _values(value)


def _values(value: object) -> Iterable[str]:
    match value:
        case Mapping():
            return [f"{name}={format_value(_not_none(name, text))}" for name, text in value.items()]
        case _ if isinstance(value, _TEXTS):
            return [os.fsdecode(value)]
        case Iterable():
            return [format_value(each) for each in value]
        case _:
            return [format_value(value)]


def _not_none(name: str, value: object) -> object:
    if value is None:
        raise TypeError(f"{name} is None: remove it, or pass a string")
    return value


def _refusal(function: str, name: str) -> str:
    if name in _REFUSED:
        return f"{function}() takes no {name}: {_REFUSED[name]}"
    if name in REMOVED_OPTIONS:
        return f"{function}() takes no {name} any more; {REMOVED_OPTIONS[name]}"
    nearest = closest(name, ROWS)
    suggestion = f"; did you mean {nearest}?" if nearest else ""
    return f"{function}() got an unexpected keyword argument {name!r}{suggestion}"


def command_line(function: str, keywords: Mapping[str, object]) -> tuple[list[str], bool]:
    """Return the options of the command as words, and whether ranks of other hosts connect to the caller.

    With the keyword ``hosts`` or ``hostfile``, the launcher is ssh by default. Variables and a job file
    may also set it, or what is preloaded.

    Args:
        function: the public function that the user has called, for messages.
        keywords: its keyword arguments that are options.

    Raises:
        TypeError: an option is unknown, or cannot be set from Python.

    """
    options = {**keywords}
    is_listed = options.get("hosts") is not None or options.get("hostfile") is not None
    if is_listed and options.get("launcher") is None:
        options["launcher"] = "ssh"
    line = CommandLine(options_from_keywords(function, options))
    outer = outer_launch_variables(os.environ)
    variables = {name: text for name, text in os.environ.items() if name not in outer}
    layers = [
        line.options,
        from_variables(variables, PREFIX),
        from_variables(variables, TORCHRUN_PREFIX),
    ]
    is_over_ssh = False
    # The command explains what is wrong in them.
    with suppress(UsageError):
        if (config := value_of("config", layers)).value:
            from clusterrun.job.job_file import read_job_file

            layers.append(read_job_file(config).settings)
        is_over_ssh = value_of("launcher", layers).value is NodeLauncher.SSH
    if not any(layer.keys() & _PRELOAD_OPTIONS for layer in layers):
        line = line.with_options(options_from_keywords(function, modules_to_preload()))
    return line.argv(), is_over_ssh


class FunctionCall(NamedTuple):
    """A call that each rank makes."""

    function: Callable[..., object]
    args: Sequence[object]
    kwargs: Mapping[str, object]
    local_rank_first: bool = False
    """Whether the local rank comes before ``args``."""

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        function = self.function
        return getattr(function, "__qualname__", None) or type(function).__qualname__


def pickle_call(
    call: FunctionCall,
    environ: Mapping[str, str] = MappingProxyType({}),
    lines: Mapping[str, list[str]] = MappingProxyType({}),
) -> list[Any]:
    """Return the parts of the frame for a call: its context, then the pickled call.

    Args:
        call: the call.
        environ: variables that the rank sets.
        lines: source lines of notebook cells that the rank does not have, by file name.

    Raises:
        UsageError: something in the call can't be pickled; the message names it.

    """
    if not callable(call.function):
        raise TypeError(f"{call.function!r} is not a function")
    if iscoroutinefunction(call.function):
        raise TypeError(
            f"{call.name} is an async function: pass a function that runs it with asyncio.run"
        )
    if not isinstance(call.args, Iterable) or isinstance(call.args, str | bytes):
        raise TypeError(f"args is {call.args!r}: give a tuple, ({call.args!r},)")
    value = (call.function, tuple(call.args), dict(call.kwargs))
    try:
        body = dumps(value, shares_main=True)
    except Exception as error:
        raise _unpicklable(call, error) from error
    context = {
        "argv": sys.argv,
        "path": [entry for entry in sys.path if isinstance(entry, str)],
        "environ": dict(environ),
        "local_rank_first": call.local_rank_first,
        "cells": dict(lines),
    }
    return [pickle.dumps(context), *body]


def cell_sources(known: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the source lines of notebook cells and console input, by file name.

    Tracebacks show these lines, which are in no file.

    Args:
        known: file names to skip.

    """
    import linecache

    return {
        name: entry[2]
        for name, entry in list(linecache.cache.items())
        # Entries for files have a modification time.
        if name not in known and len(entry) == 4 and entry[1] is None and not os.path.exists(name)  # noqa: PTH110 - a text
    }


def _unpicklable(call: FunctionCall, error: Exception) -> UsageError:
    for what, value in _pickled_values(call):
        if why := _pickling_error(value):
            return UsageError(
                f"{what} can't be pickled, and so can't be sent to the workers: {why}",
                "make it inside the function, on each rank",
            )
    return UsageError(f"the call of {call.name} can't be pickled: {error}")


def _pickled_values(call: FunctionCall) -> Iterator[tuple[str, object]]:
    """Yield the values that are pickled, with descriptions; the function last."""
    functions: list[Any] = [*filter(isfunction, (*call.args, *call.kwargs.values()))]
    for function in (call.function, *functions):
        for name, value in _variables_of(function):
            yield (
                f"{name} ({_type_name(value)}), which {FunctionCall(function, (), {}).name} uses,",
                value,
            )
    for number, value in enumerate(call.args):
        yield f"argument {number} ({_type_name(value)})", value
    for name, value in call.kwargs.items():
        yield f"argument {name} ({_type_name(value)})", value
    yield call.name, call.function


def _variables_of(function: Callable[..., object]) -> Iterator[tuple[str, object]]:
    """Yield the variables of enclosing functions and of the module that a function uses."""
    import inspect

    try:
        found = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return
    yield from found.nonlocals.items()
    yield from found.globals.items()


def _pickling_error(value: Any) -> str:
    try:
        dumps(value)
    except Exception as error:  # noqa: BLE001 - an object's own code may raise anything
        return str(error) or type(error).__name__
    return ""


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def modules_to_preload() -> dict[str, str]:
    """Return the ``preload`` keyword with imported modules; {} if it is not worth it.

    For scripts, the fork server reads their imports. For a function, the modules that the caller has
    imported are a good approximation.
    """
    # sys.modules has the order of import.
    imported = [name for name in list(sys.modules) if name in FORK_SAFE - _RANK_IMPORTS]
    patched = any(name in sys.modules for name in ENDS_PRELOADING)
    if patched or SLOW_TO_IMPORT.isdisjoint(imported):
        return {}
    return {"preload": ",".join((*imported, *_RANK_IMPORTS))}
