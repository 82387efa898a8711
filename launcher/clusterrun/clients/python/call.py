"""A call from Python: its keywords as options, the function that every rank calls, what is preloaded.

cloudpickle sends functions and classes of ``__main__`` or of a notebook, lambdas and closures by
value, and those of modules by name.
"""

import os
import pickle
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction, isfunction
from types import MappingProxyType
from typing import Any, NamedTuple

from clusterrun.clients.python.wire import dumps
from clusterrun.errors import UsageError
from clusterrun.job.declarations import Row, Setting, format_value
from clusterrun.job.options import NAMES
from clusterrun.job.removed_options import REMOVED_OPTIONS
from clusterrun.job.sources import PREFIX, CommandLine, Layer, collected
from clusterrun.job.suggestions import closest
from clusterrun.workers.fork_server.preloading.packages import (
    ENDS_PRELOADING,
    FORK_SAFE,
    SLOW_TO_IMPORT,
)

ABOUT_THE_PROGRAM = ("module", "no_python", "run_path", "pass_local_rank", "exec")
"""The function is the program."""

DRY_RUN_OPTIONS = ("dry_run", "json", "machine_root")
"""They print a plan in place of the job."""

ABOUT_TERMINALS = ("pdb",)
"""Who uses it types a command."""

_REFUSED = {*ABOUT_THE_PROGRAM, *DRY_RUN_OPTIONS, *ABOUT_TERMINALS}

ROWS = {name: row for name, row in NAMES.items() if row.name not in _REFUSED}
"""The options that a call may set, by all of their names."""

_ABOUT_STARTS = {"preload", "start_method"}

_OF_RANKS = {"cloudpickle"}
"""What each rank imports for its call."""


def options_from_keywords(function: str, keywords: Mapping[str, object]) -> Layer:
    """Return what the keywords set, each with its name as its origin; None and False set nothing.

    Args:
        function: the name of the function that was called, for messages.
        keywords: its arguments that are options.

    Raises:
        TypeError: an option is unknown, or cannot be set from Python.

    """
    found = []
    for name, value in keywords.items():
        if name not in ROWS:
            raise TypeError(_unknown(function, name))
        if value is not None and value is not False:
            row = ROWS[name]
            found += [(row, Setting(text, name)) for text in _texts_for(row, name, value)]
    return collected(found)


def _texts_for(row: Row, name: str, value: object) -> Iterable[str]:
    if not row.metavar and value is not True:
        raise TypeError(f"{name} must be True or False, not {value!r}")
    if row.value.repeated:
        return _texts(value)
    if name == "preload" and not value:
        return ["none"]
    return [",".join(_texts(value))]


def _texts(value: object) -> Iterable[str]:
    match value:
        case Mapping():
            return [f"{name}={format_value(_set(name, text))}" for name, text in value.items()]
        case str() | bytes() | os.PathLike():
            return [os.fsdecode(value)]
        case Iterable():
            return [format_value(each) for each in value]
        case _:
            return [format_value(value)]


def _set(name: str, value: object) -> object:
    if value is None:
        raise TypeError(f"{name} is None: leave it out, or give a text")
    return value


def _unknown(function: str, name: str) -> str:
    if name in ABOUT_THE_PROGRAM:
        return f"{function}() takes no {name}: its function is the program"
    if name in DRY_RUN_OPTIONS:
        return f"{function}() takes no {name}: to see a plan, type clusterrun --dry-run"
    if name in ABOUT_TERMINALS:
        return f"{function}() takes no {name}: type clusterrun --{name} with a script"
    if name in REMOVED_OPTIONS:
        return f"{function}() takes no {name} any more; {REMOVED_OPTIONS[name]}"
    nearest = closest(name, ROWS)
    suggestion = f"; did you mean {nearest}?" if nearest else ""
    return f"{function}() got an unexpected keyword argument {name!r}{suggestion}"


def command_line(function: str, keywords: Mapping[str, object]) -> tuple[list[str], bool]:
    """Return the words that start the command, and whether ranks of other hosts dial the caller.

    Args:
        function: the name of the function that was called, for messages.
        keywords: its arguments that are options. Hosts that are listed are reached by ssh, unless the
            caller says how.

    Raises:
        TypeError: an option is unknown, or cannot be set from Python.

    """
    options = {**keywords, **modules_to_preload(keywords, os.environ)}
    is_listed = options.get("hosts") is not None or options.get("hostfile") is not None
    if is_listed and options.get("launcher") is None:
        options["launcher"] = "ssh"
    words = CommandLine(options_from_keywords(function, options)).argv()
    return words, options.get("launcher") == "ssh"


class FunctionCall(NamedTuple):
    """What each rank calls."""

    function: Callable[..., object]
    args: Sequence[object]
    kwargs: Mapping[str, object]
    local_rank_first: bool = False
    """Whether the local rank comes before ``args``."""

    @property
    def name(self) -> str:
        """The function's name, for people."""
        function = self.function
        return getattr(function, "__qualname__", None) or type(function).__qualname__


def pickled(
    call: FunctionCall,
    environ: Mapping[str, str] = MappingProxyType({}),
    lines: Mapping[str, list[str]] = MappingProxyType({}),
) -> list[Any]:
    """Return what a rank reads: first the caller's argv and import path, then the call.

    Args:
        call: what each rank calls.
        environ: variables that the rank sets.
        lines: of cells that it does not have, by the names of their code.

    Raises:
        UsageError: a part can't be pickled; the message names it.

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


def cells(known: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the lines of what was typed into a notebook or a console, by the names of their code.

    Tracebacks show these lines, and no file has them.

    Args:
        known: names of code that is left out.

    """
    import linecache

    return {
        name: entry[2]
        for name, entry in list(linecache.cache.items())
        # Of a file that may change, there is a time.
        if name not in known and len(entry) == 4 and entry[1] is None and not os.path.exists(name)  # noqa: PTH110 - a text
    }


def _unpicklable(call: FunctionCall, error: Exception) -> UsageError:
    for what, value in _parts(call):
        if why := _why_not(value):
            return UsageError(
                f"{what} can't be pickled, and so can't be sent to the workers: {why}",
                "make it inside the function, on each rank",
            )
    return UsageError(f"the call of {call.name} can't be pickled: {error}")


def _parts(call: FunctionCall) -> Iterator[tuple[str, object]]:
    """Yield what is pickled, each part with its name; the function last."""
    functions: list[Any] = [*filter(isfunction, (*call.args, *call.kwargs.values()))]
    for function in (call.function, *functions):
        for name, value in _used_by(function):
            yield (
                f"{name} ({_kind(value)}), which {FunctionCall(function, (), {}).name} uses,",
                value,
            )
    for number, value in enumerate(call.args):
        yield f"argument {number} ({_kind(value)})", value
    for name, value in call.kwargs.items():
        yield f"argument {name} ({_kind(value)})", value
    yield call.name, call.function


def _used_by(function: Callable[..., object]) -> Iterator[tuple[str, object]]:
    """Yield the variables of enclosing functions and of its module that a function uses."""
    import inspect

    try:
        found = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return
    yield from found.nonlocals.items()
    yield from found.globals.items()


def _why_not(value: Any) -> str:
    try:
        dumps(value)
    except Exception as error:  # noqa: BLE001 - an object's own code may raise anything
        return str(error) or type(error).__name__
    return ""


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def modules_to_preload(options: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the keyword; {} if the user has set it, or if the caller has imported nothing of weight.

    The workers' fork server reads what a script imports. A function has no such lines, but what it
    uses its caller has mostly imported.

    Args:
        options: of the call.
        environ: the environment of the job.

    """
    is_set = options.keys() & _ABOUT_STARTS or any(
        PREFIX + name.upper() in environ for name in _ABOUT_STARTS
    )
    if is_set:
        return {}
    # In the order in which the caller has imported them.
    imported = [name for name in list(sys.modules) if name in FORK_SAFE - _OF_RANKS]
    patched = any(name in sys.modules for name in ENDS_PRELOADING)
    if patched or SLOW_TO_IMPORT.isdisjoint(imported):
        return {}
    return {"preload": ",".join((*imported, *_OF_RANKS))}
