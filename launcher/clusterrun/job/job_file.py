"""Job files: YAML with the names of options as keys.

Every value is read as text. Python values are never constructed: ``010`` does not become 8,
``1:30:00`` does not become 5400, ``no`` does not become False, and no tag can run code.

This module is imported only for a job file, because the import of yaml is slow.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from msgspec import Struct

from clusterrun.errors import UsageError, printable, shell_line
from clusterrun.job.declarations import Setting
from clusterrun.job.options import NAMES
from clusterrun.job.removed_options import REMOVED_OPTIONS
from clusterrun.job.sources import JobFile, read_text
from clusterrun.job.suggestions import did_you_mean, did_you_mean_file

if TYPE_CHECKING:
    from clusterrun.job.services import Service

PLAIN_KEYS = {
    name: row.name for name, row in NAMES.items() if row.name not in {"config", "env", "module"}
}
"""The option by key, for keys with one value."""

KEYS = ("script", "module", "args", "env", "services", "node_ranks", *PLAIN_KEYS)

ONE_VALUE = "give one value, or put quotes around it if it is meant as text"

KEYS_ARE_OPTIONS = "each option is a key: run clusterrun --help all"

ACCELERATE_KEYS = (
    *("compute_environment", "distributed_type"),
    *("machine_rank", "num_machines", "num_processes"),
)
"""Keys of the file that ``accelerate config`` writes."""


class Entry(Struct, frozen=True):
    """A ``KEY: VALUE`` of a mapping.

    Methods raise a ``UsageError`` that begins with file, line and key if the value is of another kind.
    """

    where: str
    """File and line: "job.yaml:7"."""
    key: str
    """The key with the keys of enclosing mappings: "env.NCCL_DEBUG"."""
    name: str
    """The key alone."""
    value: yaml.Node

    @property
    def origin(self) -> str:
        """The origin of the value: "job.yaml:7 nnodes"."""
        return f"{self.where} {self.key}"

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, yaml.MappingNode)

    @property
    def is_empty(self) -> bool:
        """Whether the key has no value."""
        return isinstance(self.value, yaml.ScalarNode) and not self.value.value

    def text(self) -> str:
        """Return a single value, with quotes and escapes resolved."""
        hint = self._as_one_value() if self.key in NAMES else ""
        return _text_of(self.value, self.origin, hint or ONE_VALUE)

    def texts(self) -> tuple[str, ...]:
        """Return the values of a list."""
        self._expect(yaml.SequenceNode, "a list is", f"{self.name}: [--epochs, 3]")
        return tuple(_text_of(node, self.origin) for node in self.value.value)

    def entries(self, example: str) -> tuple["Entry", ...]:
        """Return the entries of a mapping; the hint of an error shows ``example`` as its first line."""
        shown = f"{printable(self.name)}:\n    {example}"
        self._expect(yaml.MappingNode, "lines of NAME: VALUE are", shown)
        return tuple(_entries(self.value, f"{self.key}.").values())

    def _as_one_value(self) -> str:
        """Return a hint with the list or mapping as the text that the option takes; "" if there is none."""
        if self.is_list:
            items = self.texts()
        elif self.is_mapping:
            pairs = _entries(self.value, f"{self.key}.").values()
            items = tuple(f"{each.name}={each.text()}" for each in pairs)
        else:
            return ""
        if not items:
            return "remove the line"
        value = NAMES[self.key].value
        text = value.join(items)
        with suppress(UsageError):
            value.read(text)
            return f"write {self.name}: {_scalar(text)}"
        return ""

    def _expect(self, kind: type[yaml.Node], expected: str, example: str) -> None:
        _expect(kind, self.value, self.origin, expected, f"write, for example,\n  {example}")


def read_job_file(config: Setting[str]) -> JobFile:
    """Return the settings and the program of the file at the path ``config``.

    A key without a value counts as unset.

    Raises:
        UsageError: the file can't be read, is not YAML, or has an unknown key or a value of the
            wrong kind; the message begins with file, line and key.

    """
    entries = read_entries(config)
    for entry in entries.values():
        _check_known(entry)
    given = {key: entry for key, entry in entries.items() if not entry.is_empty}
    # If an option is set by several of its names, an alias wins, as among variables.
    settings: dict[str, tuple[Setting[str], ...]] = {
        name: (Setting(given[key].text(), given[key].origin),)
        for key, name in PLAIN_KEYS.items()
        if key in given
    }
    if "env" in given:
        settings["env"] = tuple(map(_variable, given["env"].entries(_VARIABLE)))
    if "module" in given:
        # The value of the key is the module's name; the option -m only says that SCRIPT is a module.
        settings["module"] = (Setting("true", given["module"].origin),)
    if "args" in given:
        # For their origin: the arguments are in ``JobFile.words``.
        args = given["args"]
        settings["args"] = (Setting(shell_line(args.texts()), args.origin),)
    services: tuple[Service, ...] = ()
    if "services" in given:
        from clusterrun.job.services import read_services

        services = read_services(given["services"])
    if not services and "node_ranks" in given:
        raise UsageError(
            f"{given['node_ranks'].origin}: applies only to a job with services, where it lists the"
            " nodes that run the main program",
            "remove the line, or write node_rank for the rank of this node",
        )
    nodes = given.get("node_ranks")
    ranks = nodes and (",".join(nodes.texts()) if nodes.is_list else nodes.text())
    main_nodes = Setting(ranks, nodes.origin) if nodes and ranks else None
    return JobFile(settings, _program(given), services, main_nodes)


def read_entries(config: Setting[str]) -> dict[str, Entry]:
    """Return the entries of the file at the path ``config`` by key.

    Raises:
        UsageError: the file can't be read, is not YAML, or is not a mapping.

    """
    root = _compose(config.value, _text(config))
    if root is None:
        return {}
    example = "write, for example,\n  script: train.py"
    _expect(yaml.MappingNode, root, _where(root), "lines of KEY: VALUE are", example)
    return _entries(root)


def _check_known(entry: Entry) -> None:
    if entry.key == "config":
        raise UsageError(
            f"{entry.origin}: a job file can't include another job file", "remove the line"
        )
    if entry.key in ACCELERATE_KEYS:
        raise UsageError(
            f"{entry.origin}: there is no such key; accelerate's own files have it",
            f"set its values with options, or write a job file; {KEYS_ARE_OPTIONS}",
        )
    if entry.key in REMOVED_OPTIONS:
        raise UsageError(
            f"{entry.origin}: there is no such key any more", REMOVED_OPTIONS[entry.key]
        )
    if entry.key not in KEYS:
        raise UsageError(
            f"{entry.origin}: there is no such key",
            did_you_mean(entry.key, KEYS) or KEYS_ARE_OPTIONS,
        )


_VARIABLE = "NCCL_DEBUG: INFO"


def variables_of(entry: Entry) -> dict[str, str]:
    """Return the variables that a service sets.

    Raises:
        UsageError: a variable can't be set.

    """
    return dict(read_text(NAMES["env"], _variable(each)) for each in entry.entries(_VARIABLE))


def _variable(entry: Entry) -> Setting[str]:
    if "=" in entry.name:
        raise UsageError(
            f"{entry.origin}: {entry.name!r} is not the name of a variable", "write NAME: VALUE"
        )
    return Setting(f"{entry.name}={entry.text()}", entry.origin)


def _program(given: Mapping[str, Entry]) -> Setting[tuple[str, ...]]:
    named = [given[key] for key in ("script", "module") if key in given]
    args = given["args"].texts() if "args" in given else ()
    if not named:
        if args:
            raise UsageError(
                f"{given['args'].origin}: goes with script or module, and the file has neither",
                "add a line script: FILE, or type the arguments after SCRIPT",
            )
        return Setting((), "default")
    if len(named) == 2:
        raise UsageError(
            f"{named[0].origin} and {named[1].origin}: both set a program",
            "remove one of the two lines",
        )
    return Setting((named[0].text(), *args), named[0].origin)


def _text(config: Setting[str]) -> str:
    try:
        data = Path(config.value).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{config.origin}: {config.value} can't be read: {error.strerror}",
            did_you_mean_file(config.value),
        ) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{config.value}:{line}: byte {data[error.start]:#04x} is not UTF-8",
            "save the file as UTF-8",
        ) from None


def _compose(path: str, text: str) -> yaml.Node | None:
    """Return the root node of the file; None if the file is empty."""
    try:
        loader = yaml.SafeLoader(text)
        # Origins come from the nodes' marks, which have this name.
        loader.name = printable(path)
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(path, error) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(
            f"{path}:{line}: character {error.character:#04x} is not allowed in a text file",
            "remove it, or write it as an escape in double quotes",
        ) from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply for a job file") from None


def _not_yaml(path: str, error: yaml.MarkedYAMLError) -> UsageError:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}" if mark else path
    if "'\\t'" in str(error.problem):
        return UsageError(f"{where}: a tab, where YAML allows only spaces", "indent with spaces")
    if error.context and error.context.startswith("while") and error.context_mark:
        began = f" {error.context} that begins in line {error.context_mark.line + 1}"
        return UsageError(f"{where}: {error.problem}{began}")
    return UsageError(f"{where}: {', '.join(filter(None, (error.context, error.problem)))}")


def _entries(mapping: yaml.Node, prefix: str = "") -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for key_node, value in mapping.value:
        where = _where(key_node)
        name = _text_of(key_node, where)
        key = prefix + name
        if key in entries:
            raise UsageError(
                f"{where} {key}: is already at {entries[key].where}", "remove one of the two"
            )
        entries[key] = Entry(where, key, name, value)
    return entries


def _scalar(text: str) -> str:
    """Return YAML for a text, in quotes if it needs them."""
    with suppress(yaml.YAMLError):
        node = yaml.compose(text, yaml.SafeLoader)
        if isinstance(node, yaml.ScalarNode) and node.value == text:
            return text
    return json.dumps(text, ensure_ascii=False)


def _text_of(node: yaml.Node, origin: str, hint: str = ONE_VALUE) -> str:
    _expect(yaml.ScalarNode, node, origin, "a single value is", hint)
    if "\0" in node.value:
        raise UsageError(f"{origin}: contains a NUL character", "remove it")
    try:
        # JSON writes a character beyond U+FFFF as a surrogate pair.
        whole: str = node.value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise UsageError(
            f"{origin}: contains a lone surrogate, an escape from \\uD800 to \\uDFFF",
            "remove it, or write the character itself",
        ) from None
    return whole


def _expect(kind: type[yaml.Node], node: yaml.Node, origin: str, expected: str, hint: str) -> None:
    """Raise a ``UsageError`` that begins with ``origin`` unless the node is of this kind."""
    if not isinstance(node, kind):
        kinds = {yaml.ScalarNode: "a single value", yaml.SequenceNode: "a list"}
        found = kinds.get(type(node), "a mapping")
        raise UsageError(f"{origin}: {found}, where {expected} expected", hint)


def _where(node: yaml.Node) -> str:
    return f"{node.start_mark.name}:{node.start_mark.line + 1}"
