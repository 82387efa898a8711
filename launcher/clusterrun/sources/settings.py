"""A job file's settings, and how rooms that are not rebuilt yet read what the sources set."""

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.job.sources import Layer
from clusterrun.sources.options.option import Option

ValueT = TypeVar("ValueT")


class JobFile(Struct, frozen=True):
    """The settings of a job file, and its program."""

    settings: Layer = {}
    """Has ``module`` if the program is one."""
    words: Fact[tuple[str, ...]] = Fact((), "default")
    """The script or module and its arguments, as on a command line; () if the file has none."""

    def without_program(self) -> Layer:
        """Return the settings that count when the command line names another program."""
        if not self.words.value:
            return self.settings
        own = {"module", "no_python"}
        return {name: it for name, it in self.settings.items() if name not in own}


def value_of(
    option: Option[ValueT], sources: Sequence[Layer], default: Fact[ValueT] | None = None
) -> Fact[ValueT]:
    """Return the value in the first of ``sources`` that sets one, else ``default``, else the row's."""
    return find(option, sources) or default or Fact(option.default, "default")


def find(option: Option[ValueT], sources: Sequence[Layer]) -> Fact[ValueT] | None:
    """Return the value in the first of ``sources`` that sets one; None if none does."""
    for source in sources:
        if option.name in source:
            return option.read(source[option.name][-1])
    return None
