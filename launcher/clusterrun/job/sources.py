"""What each source sets: the command line, variables, a job file, a cluster."""

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
"""What one source sets, by the names of options. The last text of an option counts, or all if it may be
repeated. What is not text, such as a number of nodes from a cluster, is already a value."""

PREFIX = "CLUSTERRUN_"

TORCHRUN_PREFIX = "PET_"

TOKEN_VARIABLE = f"{PREFIX}TOKEN"
"""The secret of the job. It is not an option because other users can read command lines."""

CALLER_VARIABLE = f"{PREFIX}CALLER"
"""Set by a program that starts the command (``run.caller``)."""

ENV_VARIABLE = "CLUSTERRUN_ENV"
"""The variable of ``--env``, with a setting on each line. Other users cannot read it."""

NOT_OPTIONS = (
    TOKEN_VARIABLE,
    # Read by the fork server: workers/fork_server/preloading/hazards.py.
    "CLUSTERRUN_TRUSTED_SITE_FILES",
    STEP_VARIABLE,
    PAGE_VARIABLE,
    RESUMED_VARIABLE,
)
"""CLUSTERRUN_ variables that do not belong to an option."""

EXPORTS = ("MASTER_ADDR", "MASTER_PORT")
"""Variables that job scripts export: weaker than options, stronger than a cluster."""


class CommandLine(Struct, frozen=True):
    """The options as typed, and the words from SCRIPT on."""

    options: Layer = {}
    """The origin of a value is its flag, or the name of an argument in Python."""
    words: tuple[str, ...] = ()
    after_dashes: bool = False
    """The words follow a ``--``, so they are arguments of the job file's program if it has one."""

    def read(self, subject: type[SubjectT]) -> SubjectT:
        """Return the options of a command.

        Raises:
            UsageError: an option has an impossible value.

        """
        return read(subject, [self.options])

    def with_options(self, options: Layer) -> "CommandLine":
        """Return the line with ``options``, which replace options of the same names."""
        return replace(self, options={**self.options, **options})

    def without(self, names: Collection[str]) -> "CommandLine":
        kept = {name: texts for name, texts in self.options.items() if name not in names}
        return replace(self, options=kept)

    def quoted(self, *more: str, before: Sequence[str] = ()) -> str:
        """Return the line quoted for a shell, with ``more`` flags, and words ``before`` clusterrun."""
        return shell_line([*before, "clusterrun", *self.argv(*more)])

    def argv(self, *more: str) -> list[str]:
        """Return the words after the program's name, with ``more`` flags; only options of a job."""
        own = [
            word
            for name, texts in self.options.items()
            if name in OPTIONS
            for text in texts
            for typed in [text.origin if text.origin.startswith("--") else flag(name)]
            for word in option_words(OPTIONS[name], text.value, typed)
        ]
        return [*own, *more, *(["--"] if self.after_dashes else []), *self.words]


class JobFile(Struct, frozen=True):
    """The settings of a job file, and its program."""

    settings: Layer = {}
    """Includes ``module`` if the program is a module, and ``args`` if it has arguments."""
    words: Setting[tuple[str, ...]] = Setting((), "default")
    """The script or module and its arguments, as on a command line; () if the file has no program."""
    services: "tuple[Service, ...]" = ()
    main_nodes: Setting[str] | None = None
    """The text of ``node_ranks``: the nodes of the main program in a job with services."""

    def without_program(self) -> Layer:
        """Return the settings that apply if the command line names another program."""
        if not self.words.value:
            return self.settings
        own = {"module", "args", "no_python", "run_path"}
        return {name: it for name, it in self.settings.items() if name not in own}


def typed(**texts: str) -> Layer:
    """Return the layer of these options, as if they were typed."""
    return {name: (Setting(text, flag(name)),) for name, text in texts.items()}


def layer_of(**settings: Setting[Any] | None) -> Layer:
    """Return the layer of the settings that are not None."""
    return {name: (setting,) for name, setting in settings.items() if setting is not None}


def collected(found: Iterable[tuple[Row, Setting[str]]]) -> Layer:
    """Return the layer of these options and texts; an option may come several times."""
    layer: dict[str, tuple[Setting[str], ...]] = {}
    for row, text in found:
        layer[row.name] = (*layer.get(row.name, ()), text)
    return layer


def from_variables(environ: Mapping[str, str], prefix: str) -> Layer:
    """Return the layer of variables that begin with ``prefix``; an empty variable counts as unset.

    If an option is set by several of its names, an alias wins.
    """
    return collected(
        (row, Setting(text, prefix + name.upper()))
        for name, row in NAMES.items()
        for text in _lines(row, environ.get(prefix + name.upper(), ""))
    )


def from_exports(environ: Mapping[str, str], ignored: Collection[str]) -> Layer:
    """Return the exported address and port, except for ``ignored`` variables."""
    return {
        variable.lower(): (Setting(environ[variable], variable),)
        for variable in EXPORTS
        if environ.get(variable) and variable not in ignored
    }


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each CLUSTERRUN_ or PET_ variable that clusterrun does not read."""
    known = {name.upper() for name in NAMES}
    ours = known | {each.removeprefix(PREFIX) for each in NOT_OPTIONS}
    for prefix, names in ((PREFIX, ours), (TORCHRUN_PREFIX, known)):
        for variable in sorted(environ):
            name = variable.removeprefix(prefix)
            if variable.startswith(prefix) and environ[variable] and name not in names:
                yield _unread(variable, prefix, names)


def value_of(name: str, layers: Sequence[Layer]) -> Setting[Any]:
    """Return the value from the first layer that sets the option, or its default.

    Raises:
        UsageError: the text is not a value of the option.

    """
    return find(name, layers) or Setting(OPTIONS[name].default, "default")


def strength(name: str, layers: Sequence[Layer]) -> int:
    """Return the index of the first layer that sets the option; the number of layers if none does."""
    return next((at for at, layer in enumerate(layers) if layer.get(name)), len(layers))


def find(
    name: str, layers: Sequence[Layer], rows: Mapping[str, Row] = OPTIONS
) -> Setting[Any] | None:
    """Return the value from the first layer that sets the option; None if no layer sets it.

    A repeated option has the values of all layers, those of the weakest layer first.

    Raises:
        UsageError: a text is not a value of the option.

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
    """Return a subject with the values from the layers, the strongest first, and defaults.

    Raises:
        UsageError: an option has an impossible value; the message begins with its origin.

    """
    rows = rows_of(subject)
    found = {name: find(name, layers, rows) for name in rows}
    return subject(**{name: setting.value for name, setting in found.items() if setting})


def read_text(row: Row, text: Setting[Any]) -> Any:
    """Return the value of ``text``, which may already be a value.

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
    """Return the message, which quotes the value, or one without the value if it may be secret."""
    from clusterrun.job.redaction import REDACTED, may_hold_secret

    is_variable = text.origin.startswith((PREFIX, TORCHRUN_PREFIX))
    is_secret = is_variable and may_hold_secret(text.origin)
    return f"a value {REDACTED} can't be read" if is_secret else message


def _lines(row: Row, value: str) -> list[str]:
    lines = value.split("\n") if row.value.repeated else [value]
    return [line for line in lines if line]


def _unread(variable: str, prefix: str, known: Collection[str]) -> str:
    from clusterrun.job.removed_options import REMOVED_OPTIONS

    # Names are compared without the prefix, which would make any two look alike.
    name = variable.removeprefix(prefix)
    if prefix == PREFIX and (instead := REMOVED_OPTIONS.get(name.lower())):
        return f"{variable} is not read any more; {instead}"
    nearest = closest(name, known)
    suggestion = f"; did you mean {prefix}{nearest}?" if nearest else ""
    return f"{variable} is not a variable that clusterrun reads{suggestion}"
