"""The options of a call from Python, as flags of the command line.

An option has its name in Python: ``nproc_per_node=4`` is ``--nproc-per-node 4``.
"""

import os
from collections.abc import Iterable, Mapping

from clusterrun.job.declaring import spell
from clusterrun.job.gone import GONE
from clusterrun.job.suggestions import closest
from clusterrun.sources.options.option import Kind, Option
from clusterrun.sources.options.table import OPTIONS
from clusterrun.sources.settings import Flags, FlagValue

ABOUT_THE_PROGRAM = ("module", "no_python", "run_path", "pass_local_rank", "exec")
"""The function is the program."""

ABOUT_PLANS = ("dry_run", "json", "machine_root")
"""They print a plan in place of the job."""

ABOUT_OTHER_HOSTS = ("launcher", "ssh_options")
"""A function and its results do not travel by ssh."""

ABOUT_SCRIPTS = ("debug", "pdb", "profile")
"""Those who use them type a command."""

ROWS = {
    name: row
    for row in OPTIONS
    if row.name not in {*ABOUT_THE_PROGRAM, *ABOUT_PLANS, *ABOUT_OTHER_HOSTS, *ABOUT_SCRIPTS}
    for name in row.names
}
"""The options that a call may set, by all of their names."""


def flags_of(function: str, keywords: Mapping[str, object]) -> Flags:
    """Return the flags that say the same; None and False set nothing.

    Args:
        function: the name of the function that was called, for messages.
        keywords: its arguments that are options.

    Raises:
        TypeError: an option is unknown, or cannot be set from Python.

    """
    flags: dict[str, FlagValue] = {}
    for name, value in keywords.items():
        if name not in ROWS:
            raise TypeError(_unknown(function, name))
        if value is not None and value is not False:
            flags[name] = _flag_value(ROWS[name], name, value)
    return flags


def _flag_value(row: Option[object], name: str, value: object) -> FlagValue:
    if row.kind is Kind.FLAG:
        if value is not True:
            raise TypeError(f"{name} is True or False, not {value!r}")
        return True
    if row.kind is Kind.REPEATED:
        return tuple(_texts(value))
    if name == "preload" and not value:
        return "none"
    return "true" if value is True else ",".join(_texts(value))


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
