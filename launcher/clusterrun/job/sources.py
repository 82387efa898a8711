"""What each source sets, as text with its origin: the command line, variables, a job file, a cluster."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.errors import UsageError, shell_line
from clusterrun.job.declarations import Row, Setting, flag, option_words, rows_of
from clusterrun.job.nested_launches import RESUMED_VARIABLE, STEP_VARIABLE
from clusterrun.job.options import NAMES, OPTIONS
from clusterrun.job.suggestions import closest
from clusterrun.suspend import VARIABLE as PAGE_VARIABLE

if TYPE_CHECKING:
    from clusterrun.job.services import Service

SubjectT = TypeVar("SubjectT", bound=Struct)

Layer = Mapping[str, tuple[Setting[Any], ...]]
"""What one source sets, by the names of options; of several texts the last counts, of a repeated
option all. What is not text, such as a number of nodes that a cluster knows, is a value already."""

PREFIX = "CLUSTERRUN_"

TORCHRUN_PREFIX = "PET_"

TOKEN_VARIABLE = f"{PREFIX}TOKEN"
"""A secret that all nodes hold; no option, because others can read command lines."""

CALLER_VARIABLE = f"{PREFIX}CALLER"
"""Set by a program that starts the command (``run.caller``)."""

ENV_VARIABLE = "CLUSTERRUN_ENV"
"""What ``--env`` says, a setting on each line: other users can read command lines, and no variables."""

TRUSTED_VARIABLE = "CLUSTERRUN_TRUSTED_SITE_FILES"
"""Read by the fork server: see fork_server/preloading/hazards.py."""

OUR_OWN = (TOKEN_VARIABLE, TRUSTED_VARIABLE, STEP_VARIABLE, PAGE_VARIABLE, RESUMED_VARIABLE)
"""CLUSTERRUN_ variables that are not an option's."""

EXPORTS = ("MASTER_ADDR", "MASTER_PORT")
"""Where workers meet, as job scripts export it: weaker than any option, stronger than a cluster."""


class CommandLine(Struct, frozen=True):
    """The options as typed, and the words from SCRIPT on."""

    options: Layer = {}
    """The origin of each is its flag, or the name of an argument in Python."""
    words: tuple[str, ...] = ()
    after_dashes: bool = False
    """A ``--`` stands before the words: they are arguments of the job file's program, if it has one."""

    def read(self, subject: type[SubjectT]) -> SubjectT:
        """Return a command's own options.

        Raises:
            UsageError: one has an impossible value.

        """
        return read(subject, [self.options])

    def over(self, options: Layer) -> "CommandLine":
        """Return the line with these options, too; they replace its own of the same names."""
        return replace(self, options={**self.options, **options})

    def without(self, names: Collection[str]) -> "CommandLine":
        kept = {name: texts for name, texts in self.options.items() if name not in names}
        return replace(self, options=kept)

    def line(self, *more: str, before: Sequence[str] = ()) -> str:
        """Return the line, quoted for a shell, with ``more`` flags, and words ``before`` clusterrun."""
        return shell_line([*before, "clusterrun", *self.argv(*more)])

    def argv(self, *more: str) -> list[str]:
        """Return the words after the program's name, with ``more`` flags; those of a job alone."""
        own = [
            word
            for name, texts in self.options.items()
            if name in OPTIONS
            for text in texts
            for word in option_words(OPTIONS[name], text.value, _flag(name, text))
        ]
        return [*own, *more, *(["--"] if self.after_dashes else []), *self.words]


class JobFile(Struct, frozen=True):
    """The settings of a job file, and its program."""

    settings: Layer = {}
    """Has ``module`` if the program is one."""
    words: Setting[tuple[str, ...]] = Setting((), "default")
    """The script or module and its arguments, as on a command line; () if the file has none."""
    services: "tuple[Service, ...]" = ()
    main_nodes: Setting[str] | None = None
    """The text of ``node_ranks``, the nodes of the main program beside services."""

    def without_program(self) -> Layer:
        """Return the settings that count when the command line names another program."""
        if not self.words.value:
            return self.settings
        own = {"module", "no_python"}
        return {name: it for name, it in self.settings.items() if name not in own}


def typed(**texts: str) -> Layer:
    """Return what options with these names and texts set, as if they were typed."""
    return {name: (Setting(text, flag(name)),) for name, text in texts.items()}


def layer_of(**facts: Setting[Any] | None) -> Layer:
    """Return the layer of those that are known."""
    return {name: (fact,) for name, fact in facts.items() if fact is not None}


def collected(found: Iterable[tuple[Row, Setting[str]]]) -> Layer:
    """Return the layer of these texts, in their order."""
    layer: dict[str, tuple[Setting[str], ...]] = {}
    for row, text in found:
        layer[row.name] = (*layer.get(row.name, ()), text)
    return layer


def from_variables(environ: Mapping[str, str], prefix: str) -> Layer:
    """Return the layer of variables that begin with ``prefix``; an empty variable is not set.

    Of two names of one option the alias wins.
    """
    return collected(
        (row, Setting(text, prefix + name.upper()))
        for name, row in NAMES.items()
        for text in _lines(row, environ.get(prefix + name.upper(), ""))
    )


def from_exports(environ: Mapping[str, str], besides: Collection[str] = ()) -> Layer:
    """Return the address and port that a job script has exported, but not the variables ``besides``."""
    return {
        variable.lower(): (Setting(environ[variable], variable),)
        for variable in EXPORTS
        if environ.get(variable) and variable not in besides
    }


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each CLUSTERRUN_ or PET_ variable that no option has."""
    known = {name.upper() for name in NAMES}
    ours = known | {each.removeprefix(PREFIX) for each in OUR_OWN}
    for prefix, names in ((PREFIX, ours), (TORCHRUN_PREFIX, known)):
        for variable in sorted(environ):
            # With the common prefix, any two names would look alike.
            name = variable.removeprefix(prefix)
            if variable.startswith(prefix) and environ[variable] and name not in names:
                yield _unread(variable, prefix, names)


def value_of(name: str, layers: Sequence[Layer]) -> Setting[Any]:
    """Return the value in the first layer that sets one, else the option's default.

    Raises:
        UsageError: the text that counts is not a value of the option.

    """
    return find(name, layers) or Setting(OPTIONS[name].default, "default")


def find(
    name: str, layers: Sequence[Layer], rows: Mapping[str, Row] = OPTIONS
) -> Setting[Any] | None:
    """Return the value in the first layer that sets one; None if none does.

    The values of a repeated option add up, those of the weakest layer first.

    Raises:
        UsageError: a text that counts is not a value of the option.

    """
    set_by = [texts for layer in layers if (texts := layer.get(name))]
    if not set_by:
        return None
    row, strongest = rows[name], set_by[0][-1]
    if row.value.repeated:
        added = [text for texts in reversed(set_by) for text in texts]
        return Setting(tuple(read_text(row, text) for text in added), strongest.origin)
    return Setting(read_text(row, strongest), strongest.origin)


def read(subject: type[SubjectT], layers: Sequence[Layer]) -> SubjectT:
    """Return a subject with what the layers, the strongest first, set; the rest are defaults.

    Raises:
        UsageError: an option has an impossible value; the message begins with where it is set.

    """
    rows = rows_of(subject)
    found = {name: find(name, layers, rows) for name in rows}
    return subject(**{name: fact.value for name, fact in found.items() if fact})


def read_text(row: Row, text: Setting[Any]) -> Any:
    """Return the value of ``text``, which may be one already.

    Raises:
        UsageError: it is not a value of this option; the message begins with its origin.

    """
    if not isinstance(text.value, str):
        return text.value
    try:
        return row.value.read(text.value)
    except UsageError as error:
        raise UsageError(
            f"{text.origin}: {_without_secret(text, error.message)}", error.hint
        ) from None


def _without_secret(text: Setting[str], message: str) -> str:
    """Return the message on a value, which it quotes, or one without it if a variable may be secret."""
    from clusterrun.job.redaction import REDACTED, may_hold_secret

    is_variable = text.origin.startswith((PREFIX, TORCHRUN_PREFIX))
    return (
        f"a value {REDACTED} can't be read"
        if is_variable and may_hold_secret(text.origin)
        else message
    )


def _flag(name: str, text: Setting[str]) -> str:
    return text.origin if text.origin.startswith("--") else flag(name)


def _lines(row: Row, value: str) -> list[str]:
    lines = value.split("\n") if row.value.repeated else [value]
    return [line for line in lines if line]


def _unread(variable: str, prefix: str, known: Collection[str]) -> str:
    from clusterrun.job.removed_options import GONE

    name = variable.removeprefix(prefix)
    if prefix == PREFIX and (instead := GONE.get(name.lower())):
        return f"{variable} is not read any more; {instead}"
    nearest = closest(name, known)
    suggestion = f"; did you mean {prefix}{nearest}?" if nearest else ""
    return f"{variable} is not a variable that clusterrun reads{suggestion}"
