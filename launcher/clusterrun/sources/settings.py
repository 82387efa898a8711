"""What one source says, still as text: by the command line, by variables, by a job file."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.sources.options.option import Kind, Option, flag
from clusterrun.sources.options.suggestions import closest
from clusterrun.sources.options.table import OPTIONS
from clusterrun.sources.other_launchers.nested_launches import STEP_VARIABLE

Settings = Mapping[str, tuple[Fact[str], ...]]
"""Texts by option name, each with its origin; the last of several holds, all of a repeated one."""

Given = str | bool | tuple[str, ...]
"""One flag as given: its raw text, True where it takes none, all texts of a repeated one."""

Flags = Mapping[str, Given]
"""What the command line gives, by name in snake_case."""

PREFIX = "CLUSTERRUN_"

TORCHRUN_PREFIX = "PET_"

TOKEN_VARIABLE = f"{PREFIX}TOKEN"
"""The one variable of ours that is no option."""

EXPORTS = ("MASTER_ADDR", "MASTER_PORT")
"""Where to meet, by nobody's options: weaker than all that names clusterrun, stronger than a cluster."""

ValueT = TypeVar("ValueT")


class JobFile(Struct, frozen=True):
    """What a job file says."""

    settings: Settings
    """Texts of its options; where it names a module, ``module`` is true."""
    words: Fact[tuple[str, ...]]
    """The script or module and its arguments, as on a command line; () if it names none."""

    def without_program(self) -> Settings:
        """Return what is left when the command line names another program."""
        if not self.words.value:
            return self.settings
        return {name: said for name, said in self.settings.items() if name not in PROGRAM_KINDS}


PROGRAM_KINDS = ("module", "no_python")
"""Options that say how the program named beside them is run, and nothing of any other."""

NO_JOB_FILE = JobFile({}, Fact((), "default"))


def settings_from_flags(flags: Flags) -> Settings:
    """Return what ``flags`` say, under the options' own names."""
    return _collect(
        (option, Fact(text, flag(name)))
        for option in OPTIONS
        for name in option.names
        if name in flags
        for text in _texts(flags[name])
    )


def settings_from_variables(environ: Mapping[str, str], prefix: str) -> Settings:
    """Return what variables that begin with ``prefix`` say; an empty one says nothing."""
    return _collect(
        (option, Fact(text, variable))
        for option in OPTIONS
        for variable in (prefix + name.upper() for name in option.names)
        for text in _lines(option, environ.get(variable, ""))
    )


def settings_from_exports(environ: Mapping[str, str], besides: Collection[str] = ()) -> Settings:
    """Return what a job script has exported for any launcher and its workers, ``besides`` these."""
    return {
        variable.lower(): (Fact(environ[variable], variable),)
        for variable in EXPORTS
        if environ.get(variable) and variable not in besides
    }


def unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for each CLUSTERRUN_ or PET_ variable that no option has."""
    known = {name.upper() for option in OPTIONS for name in option.names}
    ours = {*known, *(each.removeprefix(PREFIX) for each in (TOKEN_VARIABLE, STEP_VARIABLE))}
    return (*_strange(PREFIX, environ, ours), *_strange(TORCHRUN_PREFIX, environ, known))


def value_of(
    option: Option[ValueT], sources: Sequence[Settings], default: Fact[ValueT] | None = None
) -> Fact[ValueT]:
    """Return the value of the first of ``sources`` that has one, else ``default``, else the table's.

    Raises:
        UsageError: the text that holds is no value of the option.

    """
    return find(option, sources) or default or Fact(option.default, "default")


def find(option: Option[ValueT], sources: Sequence[Settings]) -> Fact[ValueT] | None:
    """Return the value of the first of ``sources`` that has one; None where none has.

    Raises:
        UsageError: the text that holds is no value of the option.

    """
    for said in sources:
        if option.name in said:
            return option.read(said[option.name][-1])
    return None


def _collect(found: Iterable[tuple[Option[object], Fact[str]]]) -> Settings:
    said: dict[str, tuple[Fact[str], ...]] = {}
    for option, text in found:
        said[option.name] = (*said.get(option.name, ()), text)
    return said


def _texts(value: Given) -> tuple[str, ...]:
    match value:
        case bool():
            return (str(value).lower(),)
        case str():
            return (value,)
        case _:
            return value


def _lines(option: Option[object], value: str) -> list[str]:
    lines = value.splitlines() if option.kind is Kind.REPEATED else [value]
    return [line for line in lines if line]


def _strange(prefix: str, environ: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    for variable in sorted(environ):
        # Compared without what all have in front, which would make any two look alike.
        name = variable.removeprefix(prefix)
        if variable.startswith(prefix) and environ[variable] and name not in known:
            nearest = closest(name, known)
            suggestion = f"; did you mean {prefix}{nearest}?" if nearest else ""
            yield f"{variable} is not a variable that clusterrun reads{suggestion}"
