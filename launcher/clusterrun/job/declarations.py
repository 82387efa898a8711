"""How an option is declared: as one field of a subject.

    class Failures(Struct, frozen=True):
        title: ClassVar = "When a worker fails"

        max_restarts: Annotated[
            int,
            number("a number of restarts"),
            Option("How often to start all workers again after one has failed"),
        ] = 0

The flag, the variables, the key of a job file, help, completion, pages and the keyword of ``launch``
follow from the field. A module with subjects must not have ``from __future__ import annotations``,
because its annotations are read as objects.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Generic, TypeVar

from msgspec import NODEFAULT, Struct

from clusterrun.errors import UsageError

ValueT_co = TypeVar("ValueT_co", covariant=True)


class Setting(Struct, Generic[ValueT_co], frozen=True):
    """A value and where it was set."""

    value: ValueT_co
    origin: str
    """What a user would search for: ``--nnodes``, ``CLUSTERRUN_NNODES``, ``job.yaml:7 nnodes``,
    ``SLURM_STEP_NUM_NODES``, ``default``."""

    def __str__(self) -> str:
        """Return "VALUE (ORIGIN)" for messages."""
        return f"{self.value} ({self.origin})"


class Value(Struct, frozen=True):
    """A kind of value."""

    read: Callable[[str], Any]
    """Returns the value of a text; raises a ``UsageError`` whose message lacks the origin of the text."""
    metavar: str = ""
    """The value in help; "" for an option without a value."""
    completes: str = ""
    """"file" or "dir". The words of a metavar such as ``auto|gpu`` are always completed."""
    implied: str = ""
    """The text that the option alone, without a value, stands for; "" if it needs a value."""
    repeated: bool = False
    """The option may be repeated; its field is a tuple with all values."""
    join: Callable[[Iterable[str]], str] = ",".join
    """Makes one text of the items of a Python list or dict; an item of a dict is ``KEY=VALUE``."""


class Option(Struct, frozen=True):
    """The properties of one option."""

    help: str
    """One sentence without a full stop."""
    metavar: str = ""
    """Replaces the metavar of the value."""
    default: str = ""
    """The default in words, if the user cannot type it."""
    aliases: tuple[str, ...] = ()
    """Other names in snake_case, from torchrun or a platform."""
    short: str = ""
    """One letter: ``m`` for ``-m``."""
    common_in_scripts: bool = False
    """Scripts often have an option of the same name."""
    same_on_all_nodes: bool = False
    """All nodes of a job must have the same value."""
    needs_agent: bool = False
    """The option has no effect without an agent, so it cannot be used with ``--exec``."""
    quiet: bool = False
    """The dry run shows the option only if it is set."""


class Row(Struct, frozen=True):
    """An option as its field declares it."""

    name: str
    """The name in a job file: ``nproc_per_node``."""
    subject: type[Struct]
    value: Value
    option: Option
    default: Any

    @property
    def flag(self) -> str:
        """The flag: ``--nproc-per-node``."""
        return flag(self.name)

    @property
    def names(self) -> tuple[str, ...]:
        """The name and all aliases, in snake_case."""
        return (self.name, *self.option.aliases)

    @property
    def metavar(self) -> str:
        """The value in help; "" for an option without a value."""
        return self.option.metavar or self.value.metavar

    @property
    def needs_equals(self) -> bool:
        """Whether the value is optional, so it must follow an equals sign: ``--pass-local-rank=local_rank``."""
        return self.metavar.startswith("[=")

    def value_text(self, value: object) -> str:
        """Return a value as typed; for the default, the option's description of it if it has one."""
        return (value == self.default and self.option.default) or format_value(value)

    @property
    def default_text(self) -> str:
        """The default as typed; "" if the option describes it in words."""
        return "" if self.option.default else format_value(self.default)


def rows_of(*subjects: type[Struct]) -> dict[str, Row]:
    """Return the options of the subjects by name, in the order of their fields."""
    return {row.name: row for subject in subjects for row in _rows(subject)}


def by_any_name(rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return the options by each of their names."""
    return {name: row for row in rows.values() for name in row.names}


def title_of(subject: type[Struct]) -> str:
    """Return the heading of a subject's options."""
    title: str = vars(subject)["title"]
    return title


def flag(name: str) -> str:
    """Return the flag of an option's ``name``: ``nproc_per_node`` is ``--nproc-per-node``."""
    return f"--{name.replace('_', '-')}"


def format_value(value: object) -> str:
    """Return ``value`` as typed on a command line."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return repr(float(value)).removesuffix(".0")
        case Enum():
            return str(value.value)
        case tuple():
            return ",".join(map(format_value, value))
        case _:
            return str(value)


def option_words(row: Row, text: str, typed: str) -> list[str]:
    """Return the command-line words for the flag ``typed`` of this option with the value ``text``."""
    if not row.metavar:
        return [typed]
    return [f"{typed}={text}"] if row.needs_equals or text.startswith("-") else [typed, text]


@cache
def _rows(subject: type[Struct]) -> tuple[Row, ...]:
    names, values = subject.__struct_fields__, subject.__struct_defaults__
    defaults = dict(zip(reversed(names), reversed(values), strict=False))
    rows = (
        _row(name, subject, annotation, defaults.get(name, NODEFAULT))
        for name, annotation in subject.__annotations__.items()
    )
    return tuple(row for row in rows if row)


def _row(name: str, subject: type[Struct], annotation: Any, default: Any) -> Row | None:
    """Return the option that a field declares; None if it declares none."""
    notes = getattr(annotation, "__metadata__", ())
    option = next((note for note in notes if isinstance(note, Option)), None)
    if option is None:
        return None
    switch = [SWITCH] if annotation.__origin__ is bool else []
    kinds = [note for note in notes if isinstance(note, Value)] or switch
    if not kinds:
        raise TypeError(f"{subject.__name__}.{name}: write Annotated[TYPE, VALUE, Option(...)]")
    return Row(name, subject, kinds[0], option, default)


def _switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in words:
        raise UsageError(f"{text!r} is neither yes nor no", "give 1 or 0, true or false")
    return words[text.lower()]


SWITCH = Value(_switch, implied="true")
"""An option without a value; in a variable or a job file 1 or 0, true or false, yes or no."""
