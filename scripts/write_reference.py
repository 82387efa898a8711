"""Write what follows from options, commands and messages, so that no page differs from the code.

Run it from anywhere after a change of any: ``python scripts/write_reference.py``. It writes
configs/reference.yaml, docs/reference/job_file.md, docs/reference/options.md and the tables of
docs/output.md, docs/services.md and docs/protocol.md.
"""

import ast
import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import get_args

from clusterrun.cli.commands import COMMANDS, Command
from clusterrun.cli.splitting import PRINTING
from clusterrun.job import options, services
from clusterrun.job.declarations import Row, flag, rows_of, title_of
from clusterrun.job.options import SUBJECTS
from clusterrun.network.requests import Description, Request
from clusterrun.policy.end_report import EndReport
from clusterrun.policy.messages import FromCoordinator, FromMember
from clusterrun.policy.queries import Answers
from clusterrun.run.event_log import Record
from msgspec import Struct

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

Values are the text that they look like: `010` stays `010`, and `1:30:00` is not a number. Flags and variables replace values of the file; `--env` adds to `env`. A key without a value is not set. In the repository `configs/reference.yaml` has every key with its default, `configs/one_node.yaml` is a short example.
"""

OPTIONS_PAGE = """\
# Options

    clusterrun [OPTIONS] SCRIPT [ARGS]

Options before SCRIPT are clusterrun's, options after it go to the script. A flag can be written with `_` for `-`, and abbreviated until only one flag fits. Set an option in any of these places; the first one set counts:

1. the flag: `--max-restarts 2`
2. the variable `CLUSTERRUN_MAX_RESTARTS`, or `PET_MAX_RESTARTS` as torchrun has it; 1 or 0 for an option without a value
3. a key of the [job file](job_file.md): `max_restarts: 2`
4. the [cluster](clusters.md), for nodes, ranks and addresses

Options of a command, such as `--partition` of `submit`, are flags only.

`clusterrun --dry-run` prints the job's values and where each was set.
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
        ROOT / "docs/output.md": output_page((ROOT / "docs/output.md").read_text()),
        ROOT / "docs/protocol.md": protocol_page((ROOT / "docs/protocol.md").read_text()),
        ROOT / "docs/services.md": services_page((ROOT / "docs/services.md").read_text()),
    }


def output_page(text: str) -> str:
    """Return the page with the table of an event's keys, in place of the one that it has."""
    begin = "<!-- keys of events: written by scripts/write_reference.py -->\n\n"
    end = "\n<!-- end of keys of events -->\n"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    rows = [(f"`{name}`", meaning) for name, meaning in _documented_fields(Record).items()]
    return f"{before}{begin}{_table(('key', 'meaning'), rows)}{end}{after}"


def _documented_fields(kind: type[Struct]) -> dict[str, str]:
    """Return the docstring of each field; "" if it has none."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    found, last = dict.fromkeys(kind.__struct_fields__, ""), ""
    for line in definition.body if isinstance(definition, ast.ClassDef) else ():
        match line:
            case ast.AnnAssign(target=ast.Name(name)):
                last = name
            case ast.Expr(ast.Constant(str(text))) if last:
                found[last] = " ".join(text.split()).replace("``", "`")
    return found


def services_page(text: str) -> str:
    """Return the page with the table of a service's keys, in place of the one that it has."""
    begin = "<!-- keys: written by scripts/write_reference.py -->\n\n"
    before, rest = text.split(begin)
    _, after = rest.split("\n<!-- end of keys -->\n")
    head = "| key | | default |\n| --- | --- | --- |\n"
    rows = [
        f"| `{row.name}` | {row.option.help} | {row.value_text(row.default)} |"
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
    # The metavar of an optional value includes "[=", without a space before it.
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
        "end report": (EndReport,),
    }
    return {name: types_table(group) for name, group in messages.items()}


def types_table(kinds: Iterable[type[Struct]]) -> str:
    """Return a table with a row for each type: its docstring, and the names of its fields."""
    rows = [
        (
            f"`{kind.__name__}`",
            " ".join((kind.__doc__ or "").split()).replace("``", "`"),
            ", ".join(f"`{field}`" for field in kind.__struct_fields__),
        )
        for kind in kinds
    ]
    return _table(("name", "meaning", "fields"), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---" for _ in heads], *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
