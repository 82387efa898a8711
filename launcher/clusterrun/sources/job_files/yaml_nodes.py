"""YAML read as nodes: keys with their lines, and every value the text that it looks like.

Python values are never constructed, so that ``010`` does not become 8, ``1:30:00`` not 5400 and
``no`` not False, and no tag can run code.
"""

from pathlib import Path

import yaml
from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.suggestions import did_you_mean_file


class Entry(Struct, frozen=True):
    """One ``KEY: VALUE`` of a mapping; ``where`` is "job.yaml:7"."""

    where: str
    key: str
    value: yaml.Node

    @property
    def origin(self) -> str:
        """The origin of its value: "job.yaml:7 nnodes"."""
        return f"{self.where} {self.key}"


def read_entries(config: Fact[str]) -> dict[str, Entry]:
    """Return the entries of the file at the path ``config`` by key; an empty file has none."""
    root = _compose(config.value, _text(config))
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(
            f"{_where(config.value, root)}: {_shape(root)}, where lines of KEY: VALUE are expected",
            "write, for example,\n  script: train.py",
        )
    return _entries(config.value, root)


def mapping(path: str, entry: Entry, example: str = "NCCL_DEBUG: INFO") -> dict[str, Entry]:
    """Return the entries of the mapping in ``entry``; their keys begin with its key and a dot."""
    if not isinstance(entry.value, yaml.MappingNode):
        raise UsageError(
            f"{entry.origin}: {_shape(entry.value)}, where lines of NAME: VALUE are expected",
            f"write, for example,\n  {entry.key}:\n    {example}",
        )
    return _entries(path, entry.value, f"{entry.key}.")


def sequence(entry: Entry) -> tuple[str, ...]:
    """Return the texts of a list."""
    if not isinstance(entry.value, yaml.SequenceNode):
        raise UsageError(
            f"{entry.origin}: {_shape(entry.value)}, where a list is expected",
            f"write, for example,\n  {entry.key}: [--epochs, 3]",
        )
    return tuple(_text_of(item, entry.origin) for item in entry.value.value)


def items(path: str, entry: Entry, example: str) -> tuple[Entry, ...]:
    """Return the items of a list, each with its own line; their keys end with their numbers."""
    if not isinstance(entry.value, yaml.SequenceNode):
        raise UsageError(
            f"{entry.origin}: {_shape(entry.value)}, where a list is expected",
            f"write, for example,\n  {entry.key.rpartition('.')[2]}:\n    - {example}",
        )
    return tuple(
        Entry(_where(path, item), f"{entry.key}[{number}]", item)
        for number, item in enumerate(entry.value.value)
    )


def scalar(entry: Entry) -> str:
    """Return the text of a single value, with quotes and escapes resolved."""
    return _text_of(entry.value, entry.origin)


def is_list(entry: Entry) -> bool:
    return isinstance(entry.value, yaml.SequenceNode)


def is_empty(entry: Entry) -> bool:
    """Return whether the key has no value."""
    return isinstance(entry.value, yaml.ScalarNode) and not entry.value.value


def _text(config: Fact[str]) -> str:
    try:
        data = Path(config.value).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{config.origin}: {config.value} cannot be read: {error.strerror}",
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
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
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


def _entries(path: str, node: yaml.MappingNode, prefix: str = "") -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for key_node, value in node.value:
        where = _where(path, key_node)
        key = prefix + _text_of(key_node, where)
        if key in entries:
            raise UsageError(
                f"{where} {key}: is already at {entries[key].where}", "remove one of the two"
            )
        entries[key] = Entry(where, key, value)
    return entries


def _text_of(node: yaml.Node, origin: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise UsageError(
            f"{origin}: {_shape(node)}, where a single value is expected",
            "put quotes around it if it is meant as text",
        )
    if "\0" in node.value:
        raise UsageError(f"{origin}: contains a NUL character", "remove it")
    return str(node.value)


def _where(path: str, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"


def _shape(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "a single value"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
