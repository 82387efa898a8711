"""What there is to know of one option."""

from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.options.values import UnreadableError

ValueT_co = TypeVar("ValueT_co", covariant=True)


class Kind(Enum):
    """How an option is given on the command line."""

    VALUE = "value"
    """``--nnodes 1``; the last one holds."""

    FLAG = "flag"
    """``--dry-run``; in a variable or a job file yes or no."""

    OPTIONAL = "optional"
    """``--pass-local-rank`` or ``--pass-local-rank=local_rank``; alone it says yes."""

    REPEATED = "repeated"
    """``--env A=1 --env B=2``; in a variable one on each line."""


class Group(Enum):
    """The headings of --help and of the reference file, in their order; each fits a screen."""

    PROGRAM = "What the workers run"
    STARTING = "How workers start"
    WORKERS = "How many workers, and where"
    PLACING = "Which CPUs and GPUs a worker gets"
    MEETING = "How nodes find each other"
    JOINING = "How nodes become one job"
    FAILING = "When a worker fails"
    OUTPUT = "What is printed"
    LOGS = "What is written to files"
    TORCHRUN = "What only lines of torchrun's say"
    LAUNCHER = "clusterrun itself"

    @property
    def topic(self) -> str:
        """What --help takes to show it alone: ``program``."""
        return self.name.lower()


class Option(Struct, Generic[ValueT_co], frozen=True):
    """One row of the table."""

    name: str
    """In snake_case, as in a job file: ``nproc_per_node``."""
    parse: Callable[[str], ValueT_co]
    """Raises ``UnreadableError``."""
    default: ValueT_co
    metavar: str
    help: str
    """One sentence without its full stop."""
    group: Group
    kind: Kind = Kind.VALUE
    aliases: tuple[str, ...] = ()
    """Other names, torchrun's, in snake_case."""
    short: str = ""
    """One letter: ``m`` for ``-m``."""
    otherwise: str = ""
    """The default in words, where no text that ``parse`` takes would spell it."""
    everyday: bool = False
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
        """The default as a user would type it; "" where ``otherwise`` tells it."""
        return "" if self.otherwise else spell(self.default)

    def read(self, text: Fact[str]) -> Fact[ValueT_co]:
        """Return the value of ``text``.

        Raises:
            UsageError: it is none; says where the text stands.

        """
        try:
            return Fact(self.parse(text.value), text.origin)
        except UnreadableError as error:
            raise UsageError(f"{text.origin}: {error.complaint}", error.hint) from None


def flag(name: str) -> str:
    """Return the flag of an option's ``name``: ``nproc_per_node`` is ``--nproc-per-node``."""
    return f"--{name.replace('_', '-')}"


def spell(value: object) -> str:
    """Return ``value`` as a user would type it."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case Enum():
            return str(value.value)
        case _:
            return str(value)
