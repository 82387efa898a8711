"""The call that every rank makes, pickled: a function with its arguments.

cloudpickle sends functions and classes of ``__main__`` or of a notebook, lambdas and closures by
value, and those of modules by name.
"""

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction, isfunction
from typing import Any, NamedTuple

from clusterrun.errors import UsageError


class Call(NamedTuple):
    """What each rank calls."""

    function: Callable[..., object]
    args: Sequence[object]
    kwargs: Mapping[str, object]
    local_rank_first: bool = False
    """Whether the local rank comes before ``args``."""
    changed_variables: Mapping[str, tuple[str | None, str | None]] = {}
    """Variables that the caller has changed since the environment of the ranks was taken from it:
    before and now; None: not set."""

    @property
    def name(self) -> str:
        """The function's name, for people."""
        function = self.function
        return getattr(function, "__qualname__", None) or type(function).__qualname__


def pickled(call: Call) -> bytes:
    """Return what a rank reads (``rank_program``): the call, and the caller's argv and import path.

    Raises:
        UsageError: a part can't be pickled; the message names it.

    """
    from cloudpickle import dumps

    if not callable(call.function):
        raise TypeError(f"{call.function!r} is no function")
    if iscoroutinefunction(call.function):
        raise TypeError(f"{call.name} is an async function: pass one that runs it by asyncio.run")
    if not isinstance(call.args, Iterable) or isinstance(call.args, str | bytes):
        raise TypeError(f"args is {call.args!r}: give a tuple, ({call.args!r},)")
    try:
        body = dumps((call.function, tuple(call.args), dict(call.kwargs)))
    except Exception as error:
        raise _unpicklable(call, error) from error
    return pickle.dumps(
        {
            "python": sys.version_info[:2],
            "argv": sys.argv,
            "path": [entry for entry in sys.path if isinstance(entry, str)],
            "local_rank_first": call.local_rank_first,
            "changed_variables": dict(call.changed_variables),
            "call": body,
        }
    )


def _unpicklable(call: Call, error: Exception) -> UsageError:
    for what, value in _parts(call):
        if why := _why_not(value):
            return UsageError(
                f"{what} can't be pickled, and so can't be sent to the workers: {why}",
                "make it inside the function, on each rank",
            )
    return UsageError(f"the call of {call.name} can't be pickled: {error}")


def _parts(call: Call) -> Iterator[tuple[str, object]]:
    """Yield what is pickled, each part with its name; the function last."""
    functions: list[Any] = [*filter(isfunction, (*call.args, *call.kwargs.values()))]
    for function in (call.function, *functions):
        for name, value in _used_by(function):
            yield f"{name} ({_kind(value)}), which {Call(function, (), {}).name} uses,", value
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
    from cloudpickle import dumps

    try:
        dumps(value)
    except Exception as error:  # noqa: BLE001 - an object's own code may raise anything
        return str(error) or type(error).__name__
    return ""


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
