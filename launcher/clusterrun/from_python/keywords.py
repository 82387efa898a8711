"""The options of a call from Python, as those of a command line.

An option has its name in Python: ``nproc_per_node=4`` is ``--nproc-per-node 4``.
"""

import os
from collections.abc import Iterable, Mapping

from clusterrun.domain.facts import Fact
from clusterrun.job.declaring import Row, rows_of, spell
from clusterrun.job.gone import GONE
from clusterrun.job.options import NAMES, Debugging, Reaching
from clusterrun.job.sources import Layer, collected
from clusterrun.job.suggestions import closest

ABOUT_THE_PROGRAM = ("module", "no_python", "run_path", "pass_local_rank", "exec")
"""The function is the program."""

ABOUT_PLANS = ("dry_run", "json", "machine_root")
"""They print a plan in place of the job."""

ABOUT_OTHER_HOSTS = rows_of(Reaching)
"""A function and its results do not travel by ssh."""

ABOUT_SCRIPTS = rows_of(Debugging)
"""Those who use them type a command."""

_REFUSED = {*ABOUT_THE_PROGRAM, *ABOUT_PLANS, *ABOUT_OTHER_HOSTS, *ABOUT_SCRIPTS}

ROWS = {name: row for name, row in NAMES.items() if row.name not in _REFUSED}
"""The options that a call may set, by all of their names."""


def options_of(function: str, keywords: Mapping[str, object]) -> Layer:
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
            found += [(row, Fact(text, name)) for text in _texts_for(row, name, value)]
    return collected(found)


def _texts_for(row: Row, name: str, value: object) -> Iterable[str]:
    if not row.metavar and value is not True:
        raise TypeError(f"{name} is True or False, not {value!r}")
    if row.value.repeated:
        return _texts(value)
    if name == "preload" and not value:
        return ["none"]
    return [",".join(_texts(value))]


def _texts(value: object) -> Iterable[str]:
    match value:
        case Mapping():
            return [f"{name}={spell(_set(name, text))}" for name, text in value.items()]
        case str() | bytes() | os.PathLike():
            return [os.fsdecode(value)]
        case Iterable():
            return [spell(each) for each in value]
        case _:
            return [spell(value)]


def _set(name: str, value: object) -> object:
    if value is None:
        raise TypeError(f"{name} is None: leave it out, or give a text")
    return value


def _unknown(function: str, name: str) -> str:
    if name in ABOUT_THE_PROGRAM:
        return f"{function}() takes no {name}: its function is the program"
    if name in ABOUT_PLANS:
        return f"{function}() takes no {name}: to see a plan, type clusterrun --dry-run"
    if name in ABOUT_OTHER_HOSTS:
        return f"{function}() takes no {name}: type clusterrun --launcher ssh with a script"
    if name in ABOUT_SCRIPTS:
        return f"{function}() takes no {name}: type clusterrun --{name} with a script"
    if name in GONE:
        return f"{function}() takes no {name} any more; {GONE[name]}"
    nearest = closest(name, ROWS)
    suggestion = f"; did you mean {nearest}?" if nearest else ""
    return f"{function}() got an unexpected keyword argument {name!r}{suggestion}"
