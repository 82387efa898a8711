"""The options that each source sets, as text: the command line, variables, a job file."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.domain.scheduler import RESUMED_VARIABLE
from clusterrun.job.declaring import flag
from clusterrun.job.nested_launches import STEP_VARIABLE
from clusterrun.job.suggestions import closest
from clusterrun.sources.options.option import Kind, Option
from clusterrun.sources.options.table import OPTIONS
from clusterrun.suspend import VARIABLE as PAGE_VARIABLE

Settings = Mapping[str, tuple[Fact[str], ...]]
"""Texts by option name, each with its origin; of several the last counts, of a repeated option all."""

FlagValue = str | bool | tuple[str, ...]
"""A flag's text; True if it takes none; all texts of a repeated one."""

Flags = Mapping[str, FlagValue]
"""The flags of a command line, by name in snake_case."""

PREFIX = "CLUSTERRUN_"

TORCHRUN_PREFIX = "PET_"

TOKEN_VARIABLE = f"{PREFIX}TOKEN"
"""The only variable of clusterrun's that users set and that is no option."""

REPORT_VARIABLE = f"{PREFIX}REPORT_FILE"
"""Where an agent that ssh has started writes its report, which the client prints once for all."""

EXPORTS = ("MASTER_ADDR", "MASTER_PORT")
"""Where workers meet, as job scripts export it: weaker than any option, stronger than a cluster."""

OPTIONAL = {name for row in OPTIONS if row.kind is Kind.OPTIONAL for name in row.names}

ValueT = TypeVar("ValueT")


class JobFile(Struct, frozen=True):
    """The settings of a job file, and its program."""

    settings: Settings = {}
    """Has ``module`` if the program is one."""
    words: Fact[tuple[str, ...]] = Fact((), "default")
    """The script or module and its arguments, as on a command line; () if the file has none."""

    def without_program(self) -> Settings:
        """Return the settings that count when the command line names another program."""
        if not self.words.value:
            return self.settings
        own = {"module", "no_python"}
        return {name: it for name, it in self.settings.items() if name not in own}


class CommandLine(Struct, frozen=True):
    """The flags as typed, and the words from SCRIPT on."""

    flags: Flags
    words: tuple[str, ...]
    spelled: Callable[[str], str] = flag
    """How the user has typed an option of this name: as a flag, or as an argument in Python."""

    def line(self, *more: str, before: Sequence[str] = ()) -> str:
        """Return the line, quoted for a shell, with ``more`` flags, and words ``before`` clusterrun."""
        from shlex import join

        return join([*before, "clusterrun", *self.argv(*more)])

    def argv(self, *more: str) -> list[str]:
        """Return the words after the program's name, with ``more`` flags."""
        flags = [word for name, value in self.flags.items() for word in _words(name, value)]
        return [*flags, *more, *self.words]


def settings_from_flags(
    flags: Flags,
    spelled: Callable[[str], str] = flag,
    options: Sequence[Option[object]] = OPTIONS,
) -> Settings:
    """Return the settings of ``flags``, whose names may be aliases; ``spelled`` gives the origin."""
    return _collect(
        (option, Fact(text, spelled(name)))
        for option in options
        for name in option.names
        if name in flags
        for text in _texts(flags[name])
    )


def settings_from_variables(environ: Mapping[str, str], prefix: str) -> Settings:
    """Return the settings of variables that begin with ``prefix``; an empty variable is not set."""
    return _collect(
        (option, Fact(text, variable))
        for option in OPTIONS
        for variable in (prefix + name.upper() for name in option.names)
        for text in _lines(option, environ.get(variable, ""))
    )


def settings_from_exports(environ: Mapping[str, str], besides: Collection[str] = ()) -> Settings:
    """Return the address and port that a job script has exported, but not the variables ``besides``."""
    return {
        variable.lower(): (Fact(environ[variable], variable),)
        for variable in EXPORTS
        if environ.get(variable) and variable not in besides
    }


OUR_OWN = (TOKEN_VARIABLE, REPORT_VARIABLE, STEP_VARIABLE, PAGE_VARIABLE, RESUMED_VARIABLE)
"""CLUSTERRUN_ variables that are no option's."""


def unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for each CLUSTERRUN_ or PET_ variable that no option has."""
    known = {name.upper() for option in OPTIONS for name in option.names}
    ours = {
        *known,
        *(each.removeprefix(PREFIX) for each in OUR_OWN),
    }
    return (*_unknown(PREFIX, environ, ours), *_unknown(TORCHRUN_PREFIX, environ, known))


def value_of(
    option: Option[ValueT], sources: Sequence[Settings], default: Fact[ValueT] | None = None
) -> Fact[ValueT]:
    """Return the value in the first of ``sources`` that sets one, else ``default``, else the row's."""
    return find(option, sources) or default or Fact(option.default, "default")


def find(option: Option[ValueT], sources: Sequence[Settings]) -> Fact[ValueT] | None:
    """Return the value in the first of ``sources`` that sets one; None if none does."""
    for source in sources:
        if option.name in source:
            return option.read(source[option.name][-1])
    return None


def _words(name: str, value: FlagValue) -> Iterator[str]:
    match value:
        case bool():
            yield flag(name)
        case str() if name in OPTIONAL:
            yield f"{flag(name)}={value}"
        case str():
            yield from (flag(name), value)
        case _:
            for text in value:
                yield from (flag(name), text)


def _collect(found: Iterable[tuple[Option[object], Fact[str]]]) -> Settings:
    settings: dict[str, tuple[Fact[str], ...]] = {}
    for option, text in found:
        settings[option.name] = (*settings.get(option.name, ()), text)
    return settings


def _texts(value: FlagValue) -> tuple[str, ...]:
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


def _unknown(prefix: str, environ: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    for variable in sorted(environ):
        # With the common prefix, any two names would look alike.
        name = variable.removeprefix(prefix)
        if variable.startswith(prefix) and environ[variable] and name not in known:
            yield _unread(variable, prefix, known)


def _unread(variable: str, prefix: str, known: Collection[str]) -> str:
    from clusterrun.job.gone import GONE

    name = variable.removeprefix(prefix)
    if prefix == PREFIX and (instead := GONE.get(name.lower())):
        return f"{variable} is not read any more; {instead}"
    nearest = closest(name, known)
    suggestion = f"; did you mean {prefix}{nearest}?" if nearest else ""
    return f"{variable} is not a variable that clusterrun reads{suggestion}"
