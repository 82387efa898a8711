"""Write what follows from options, commands and messages, so that no page differs from the code.

Run it from anywhere after a change of any: ``python scripts/write_reference.py``. It writes
configs/reference.yaml, docs/reference/job_file.md, docs/reference/options.md and the tables of
docs/services.md and docs/protocol.md.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import get_args

from clusterrun.cli.commands import COMMANDS, Command
from clusterrun.cli.splitting import PRINTING
from clusterrun.job import options, services
from clusterrun.job.declaring import Row, flag, rows_of, title_of
from clusterrun.job.options import SUBJECTS
from clusterrun.network.requests import Description, Request
from clusterrun.policy.answers import NodeRanks, NodeStacks
from clusterrun.policy.end_report import EndReport
from clusterrun.policy.messages import FromCoordinator, FromMember
from clusterrun.policy.queries import Answers
from msgspec import NODEFAULT, Struct, json
from msgspec import inspect as types

ROOT = Path(__file__).parents[1]

KEYS_OF_THE_PROGRAM = """\
# The program; one on the command line replaces its three keys.

# A Python script.
script:

# Or a Python module, run as by python -m.
module:

# The arguments of either.
args: []

# Programs beside it, as one job: docs/services.md.
services:

# The nodes of the program, if there are some. Default: all that have a GPU left for it.
node_ranks:
"""

HEAD = f"""\
# Every key of a job file with its default; clusterrun --config FILE reads one.
#
# The first one set counts: a flag, a variable (CLUSTERRUN_NNODES, then PET_NNODES), a key of the
# file, the default. Values are the text that they look like. A key without a value is not set.


{KEYS_OF_THE_PROGRAM}"""

JOB_FILE = """\
# Job file

`clusterrun --config job.yaml` reads a job from a YAML file. Its keys are the names of the [options](options.md) with `_` for `-`, and `script`, `module` and `args` for the program. A key that is in the file twice, or that no option has, is an error with its line.

    script: train.py
    args: [--epochs, 8]
    nproc_per_node: 4
    max_restarts: 2
    env:
      NCCL_DEBUG: INFO

Values are the text that they look like: `010` stays `010`, and `1:30:00` is no number. Flags and variables replace values of the file; `--env` adds to `env`. A key without a value is not set. In the repository `configs/reference.yaml` has every key with its default, `configs/one_node.yaml` is a short example.
"""

OPTIONS_PAGE = """\
# Options

    clusterrun [OPTIONS] SCRIPT [ARGS]

Options before SCRIPT are clusterrun's, options after it go to the script. A flag may be typed with `_` for `-`, and abbreviated until only one flag fits. Set an option in any of these places; the first one set counts:

1. the flag: `--max-restarts 2`
2. the variable `CLUSTERRUN_MAX_RESTARTS`, or `PET_MAX_RESTARTS` as torchrun has it; 1 or 0 for an option without a value
3. a key of the [job file](job_file.md): `max_restarts: 2`
4. the [cluster](clusters.md), for nodes, ranks and addresses

`clusterrun --dry-run` prints each value and where it was set.
"""

PAGES = {
    options.Starting: "../workers.md",
    options.Workers: "../several_nodes.md",
    options.Placing: "../binding.md",
    options.Rendezvous: "../several_nodes.md",
    options.Join: "../several_nodes.md",
    options.Failures: "../failures.md",
    options.Output: "../output.md",
    options.Files: "../output.md",
    options.Torchrun: "../torchrun.md",
    options.Launcher: "../binding.md#draw-the-machine-topo",
}
"""The page that explains a group's options."""


def main() -> None:
    for path, text in references().items():
        path.write_text(text, encoding="utf-8")
        print(path)


def references() -> dict[Path, str]:
    """Return the files, each with its text."""
    return {
        ROOT / "configs/reference.yaml": yaml_reference(),
        ROOT / "docs/reference/job_file.md": JOB_FILE,
        ROOT / "docs/reference/options.md": options_page(),
        ROOT / "docs/protocol.md": protocol_page((ROOT / "docs/protocol.md").read_text()),
        ROOT / "docs/services.md": services_page((ROOT / "docs/services.md").read_text()),
    }


def services_page(text: str) -> str:
    """Return the page with the table of a service's keys, in place of the one that it has."""
    begin = "<!-- keys: written by scripts/write_reference.py -->\n\n"
    before, rest = text.split(begin)
    _, after = rest.split("\n<!-- end of keys -->\n")
    head = "| key | | default |\n| --- | --- | --- |\n"
    rows = [
        f"| `{row.name}` | {row.option.help} | {row.in_words(row.default)} |"
        for row in services.OPTIONS.values()
        if row.name != "ready_timeout"
    ]
    table = "\n".join([*rows, ""])
    return f"{before}{begin}{head}{PROGRAM_OF_A_SERVICE}{table}\n<!-- end of keys -->\n{after}"


PROGRAM_OF_A_SERVICE = """\
| `command` | A list: a program and its arguments. A text: a line for `/bin/sh -c` | one of these three |
| `script`, `module` | A Python script, or a module as with `-m`; `args` are its arguments | |
| `env` | Variables of this service alone | none |
"""


def yaml_reference() -> str:
    return HEAD + "".join(_yaml_section(group) for group in SUBJECTS)


def _yaml_section(group: type[Struct]) -> str:
    # As a key, module holds the module's name: it is one of the program's keys.
    rows = [row for row in rows_of(group).values() if row.name not in {"config", "module"}]
    return f"\n\n# {title_of(group)}\n" + "".join(f"\n{_yaml_entry(row)}\n" for row in rows)


def _yaml_entry(row: Row) -> str:
    default = f" Default: {row.option.default}." if row.option.default else ""
    comment = wrap(f"{row.option.help}.{default}", width=98, break_on_hyphens=False)
    line = f"{row.name}: {row.default_text}".rstrip()
    return "\n".join([*(f"# {text}" for text in comment), line])


def options_page() -> str:
    cells = [*map(_command_cells, COMMANDS), *map(_printing_cells, PRINTING.values())]
    commands = _table(("command", "what it does"), cells)
    groups = [*map(_group_section, SUBJECTS), *map(_command_section, COMMANDS)]
    return "\n".join([OPTIONS_PAGE, "## Commands\n", commands, *filter(None, groups)])


def _command_section(command: Command) -> str:
    """Return the options that only this command takes; "" if it has none."""
    if not command.own:
        return ""
    rows = [_option_cells(row) for row in command.own_rows.values()]
    heads = ("option", "what it does", "default")
    return f"## clusterrun {command.word}\n\n{command.about}\n\n{_table(heads, rows)}"


def _group_section(group: type[Struct]) -> str:
    rows = [_option_cells(row) for row in rows_of(group).values()]
    link = (
        f"More: [{PAGES[group].removeprefix('../')}]({PAGES[group]}).\n\n" if group in PAGES else ""
    )
    return f"## {title_of(group)}\n\n{link}{_table(('option', 'what it does', 'default'), rows)}"


def _option_cells(row: Row) -> tuple[str, str, str]:
    # The brackets of a value that may be left out touch the name.
    space = "" if row.needs_equals else " "
    others = [
        *map(flag, row.option.aliases),
        *([f"-{row.option.short}"] if row.option.short else []),
    ]
    named = "".join(f", `{other}`" for other in others)
    default = "" if row.default_text == "false" else row.option.default or row.default_text
    return (
        f"`{row.flag}{space}{row.metavar}`".replace(" `", "`") + named,
        row.option.help,
        default,
    )


def _command_cells(command: Command) -> tuple[str, str]:
    script = "[OPTIONS] SCRIPT [ARGS]" if command.takes_script else command.words
    words = " ".join(filter(None, (command.word, script)))
    return f"`clusterrun {words}`", command.summary


def _printing_cells(row: Row) -> tuple[str, str]:
    return f"`clusterrun {row.flag} {row.metavar}`".replace(" `", "`"), row.option.help


def protocol_page(page: str) -> str:
    """Return docs/protocol.md with new tables; all between them is written by hand.

    Raises:
        ValueError: a table has no place in the page, or several.

    """
    for name, table in message_tables().items():
        begin = f"<!-- {name}: written by scripts/write_reference.py -->\n\n"
        end = f"\n<!-- end of {name} -->\n"
        before, rest = page.split(begin)
        _, after = rest.split(end)
        page = f"{before}{begin}{table}{end}{after}"
    return page


def message_tables() -> dict[str, str]:
    """Return the tables of docs/protocol.md by name."""
    messages = {
        "members": get_args(FromMember),
        "coordinator": get_args(FromCoordinator),
        "requests": get_args(Request),
        "answers": (Description, Answers),
        "bodies": (NodeRanks, NodeStacks),
        "end report": (EndReport,),
    }
    whole = [message for group in messages.values() for message in group]
    parts = [it for it in _with_parts(types.multi_type_info(whole)) if it not in whole]
    return {
        **{name: types_table(group) for name, group in messages.items()},
        "parts": types_table(parts),
    }


def _with_parts(kinds: Iterable[types.Type]) -> dict[type, None]:
    """Return the types with names in ``kinds`` and their fields, each before its parts."""
    found: dict[type, None] = {}
    for kind in kinds:
        match kind:
            case types.StructType(cls, fields):
                found |= {cls: None, **_with_parts(field.type for field in fields)}
            case types.EnumType(cls):
                found[cls] = None
            case types.UnionType(inner):
                found |= _with_parts(inner)
            case types.VarTupleType(item):
                found |= _with_parts([item])
    return found


def types_table(kinds: Iterable[type]) -> str:
    """Return a table with a row for each type, and for each of its fields or values."""
    rows = [row for kind in types.multi_type_info(kinds) for row in _type_rows(kind)]
    return _table(("name", "type", "meaning", "default"), rows)


def _type_rows(kind: types.Type) -> Iterator[tuple[str, str, str, str]]:
    match kind:
        case types.EnumType(cls):
            meanings = docstrings_of(cls)
            yield f"**`{cls.__name__}`**", "text", _plain(cls.__doc__ or ""), ""
            for value in cls:
                yield f'`"{value.value}"`', "", meanings[value.name], ""
        case types.StructType(cls, fields, tag_field):
            meanings = docstrings_of(cls)
            shape = f"map with `{tag_field}`" if tag_field else "map"
            yield f"**`{cls.__name__}`**", shape, _plain(cls.__doc__ or ""), ""
            for field in fields:
                # All fields of a part that may be left out have defaults themselves.
                default = {} if isinstance(field.default, Struct) else field.default
                shown = "" if default is NODEFAULT else f"`{_in_json(default)}`"
                yield f"`{field.name}`", in_words(field.type), meanings.get(field.name, ""), shown


def _in_json(default: object) -> str:
    # JSON has no bytes, and they are empty.
    return json.encode("" if default == b"" else default).decode()


def docstrings_of(kind: type) -> dict[str, str]:
    """Return the docstrings of the fields or values of a class, which only its source has."""
    module = ast.walk(ast.parse(inspect.getsource(kind)))
    body = next(node.body for node in module if isinstance(node, ast.ClassDef))
    found = {}
    for one, other in pairwise(body):
        match one, other:
            case (
                ast.AnnAssign(ast.Name(name)) | ast.Assign([ast.Name(name)]),
                ast.Expr(ast.Constant(str(text))),
            ):
                found[name] = _plain(text)
    return found


def _plain(docstring: str) -> str:
    return " ".join(docstring.split()).replace("``", "`")


def in_words(kind: types.Type) -> str:
    """Return the values that a type allows, with their bounds.

    Raises:
        TypeError: it has a kind of bounds that no message had until now.

    """
    match kind:
        case types.NoneType():
            return "null"
        case types.BoolType():
            return "true or false"
        case types.IntType(None, None, None, None, None):
            return "whole number"
        case types.IntType(None, int(least), int(above), None, None):
            return f"whole number from {least} to {above - 1}"
        case types.IntType(None, int(least), None, int(most), None):
            return f"whole number from {least} to {most}"
        case types.FloatType(None, None, None, None, None):
            return "number"
        case types.FloatType(None, least, None, most, None) if None not in {least, most}:
            return f"number from {least:.0f} to {most:.0f}"
        case types.StrType(None, None, None) | types.BytesType(None, _):
            size = "bytes" if kind.max_length is None else f"at most {kind.max_length} bytes"
            return "text" if isinstance(kind, types.StrType) else size
        case types.StrType(least, int(longest), str(pattern)):
            words = "text" if re.search(pattern, "\n") else "line"
            path = "" if re.search(pattern, "/") else ", no path"
            size = f"{least} to {longest}" if least else f"at most {longest}"
            return f"{words} of {size} characters{path}"
        case types.StructType(cls) | types.EnumType(cls):
            return f"`{cls.__name__}`"
        case types.UnionType(inner):
            *others, last = map(in_words, inner)
            return f"{', '.join(others)} or {last}"
        case types.TupleType(items):
            return f"list: {', '.join(map(in_words, items))}"
        case types.VarTupleType(item, None, most):
            size = f" of at most {most}" if most else ""
            return f"list{size}, each {in_words(item)}"
        case types.DictType(key, value, None, None):
            return f"map of {in_words(key)} to {in_words(value)}"
        case _:
            raise TypeError(f"no words for {kind}")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---" for _ in heads], *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
