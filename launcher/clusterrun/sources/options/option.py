"""What the table holds of each option."""

from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, TypeVar

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.declaring import SWITCH, Row, flag, spell

ValueT_co = TypeVar("ValueT_co", covariant=True)


class Kind(Enum):
    """How an option is given on the command line."""

    VALUE = "value"
    """``--nnodes 1``; the last one counts."""

    FLAG = "flag"
    """``--dry-run``; yes or no in a variable or a job file."""

    OPTIONAL = "optional"
    """``--pass-local-rank`` or ``--pass-local-rank=local_rank``; without a value it means yes."""

    NEXT_WORD = "next word"
    """``--help workers``, or ``--help`` alone; only a flag that names a command is of this kind."""

    REPEATED = "repeated"
    """``--env A=1 --env B=2``; one on each line of a variable."""


class Group(Enum):
    """The headings of --help and of the reference, in their order; each fits a screen."""

    PROGRAM = "What the workers run"
    STARTING = "How workers start"
    WORKERS = "How many workers, and where"
    PLACING = "Which CPUs and GPUs a worker gets"
    REACHING = "How other hosts are reached"
    MEETING = "How nodes find each other"
    JOINING = "How nodes become one job"
    FAILING = "When a worker fails"
    LOSING = "When a node is lost"
    SUSPENDING = "How a job is suspended"
    DEBUGGING = "How a job is watched, debugged and profiled"
    OUTPUT = "What is printed"
    FILES = "What is written to files"
    TORCHRUN = "Options for torchrun's command lines"
    LAUNCHER = "clusterrun itself"

    @property
    def topic(self) -> str:
        """The word that shows it alone: ``--help program``."""
        return self.name.lower()


class Option(Struct, Generic[ValueT_co], frozen=True):
    """One row of the table."""

    name: str
    """In snake_case, as in a job file: ``nproc_per_node``."""
    parse: Callable[[str], ValueT_co]
    """Raises ``UsageError``."""
    default: ValueT_co
    metavar: str
    help: str
    """One sentence without its full stop."""
    kind: Kind = Kind.VALUE
    aliases: tuple[str, ...] = ()
    """Other names, torchrun's, in snake_case."""
    short: str = ""
    """One letter: ``m`` for ``-m``."""
    default_words: str = ""
    """The default in words, where no text that ``parse`` reads would give it."""
    common_in_scripts: bool = False
    """Scripts often have an option of that name themselves."""
    in_file: bool = True
    """It is a key of a job file too."""

    @property
    def names(self) -> tuple[str, ...]:
        """All its names in snake_case, its own first."""
        return (self.name, *self.aliases)

    @property
    def flag(self) -> str:
        """Its flag: ``--nproc-per-node``."""
        return flag(self.name)

    @property
    def default_text(self) -> str:
        """The default as a user would type it; "" if ``default_words`` describe it."""
        return "" if self.default_words else spell(self.default)

    def read(self, text: Fact[str]) -> Fact[ValueT_co]:
        """Return the value of ``text``.

        Raises:
            UsageError: ``text`` is no value of this option; the message begins with its origin.

        """
        try:
            return Fact(self.parse(text.value), text.origin)
        except UsageError as error:
            raise UsageError(f"{text.origin}: {error.message}", error.hint) from None


def as_old_row(row: Row, adapted: Callable[[Any], Any] = lambda value: value) -> Option[Any]:
    """Return an option as the rooms that are not rebuilt yet take it; goes with them."""
    kind = Kind.VALUE
    if row.value.repeated:
        kind = Kind.REPEATED
    elif row.value.alone:
        kind = Kind.OPTIONAL if row.metavar else Kind.FLAG
    return Option(
        row.name,
        parse=lambda text: adapted(row.value.read(text)),
        default=adapted(row.default),
        metavar=row.metavar,
        help=row.option.help,
        kind=kind,
        aliases=row.option.aliases,
        short=row.option.short,
        default_words=row.option.default,
        common_in_scripts=row.option.common_in_scripts,
        in_file=row.option.in_file,
    )


def switch_option(
    name: str,
    *,
    help: str,  # noqa: A002 - the field's name
    short: str = "",
    common_in_scripts: bool = False,
) -> Option[bool]:
    """Return the row of an option that takes no value and is off by default."""
    return Option(
        name,
        parse=SWITCH.read,
        default=False,
        metavar="",
        help=help,
        kind=Kind.FLAG,
        short=short,
        common_in_scripts=common_in_scripts,
    )
