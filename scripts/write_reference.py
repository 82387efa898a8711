"""Write what follows from the tables of options and commands, so that no page differs from them.

Run it from anywhere after a change of either table: ``python scripts/write_reference.py``. It writes
configs/reference.yaml, the manifests in configs/kubernetes, docs/reference/job_file.md and
docs/reference/options.md.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap

from door import (
    ALL_SCHEDULERS,
    COMMANDS,
    PRINTING,
    SCHEDULERS,
    SUBJECTS,
    Command,
    CommandLine,
    Kubernetes,
    ManifestKind,
    Row,
    describe_submission,
    flag,
    options,
    rows_of,
    title_of,
    typed,
)
from msgspec import Struct
from msgspec.structs import replace

ROOT = Path(__file__).parents[1]

SECTIONS = ", ".join(f"`{name}`" for name in SCHEDULERS)

KEYS_OF_SECTIONS = f"""

# What clusterrun submit asks of a scheduler

# The keys are the options of clusterrun submit, for all schedulers.
{ALL_SCHEDULERS}:

# For one; these win.
{chr(10).join(f"{name}:" for name in SCHEDULERS)}
"""

KEYS_OF_THE_PROGRAM = """\
# The program; one on the command line replaces all three keys.

# A Python script.
script:

# Or a Python module, run as by python -m.
module:

# The arguments of either.
args: []
"""

HEAD = f"""\
# Every key of a job file with its default; clusterrun --config FILE reads one.
#
# The first one set counts: a flag, a variable (CLUSTERRUN_NNODES, then PET_NNODES), a key of the
# file, the default. Values are the text that they look like. A key without a value is not set.


{KEYS_OF_THE_PROGRAM}"""

JOB_FILE = f"""\
# Job file

`clusterrun --config job.yaml` reads a job from a YAML file. Its keys are the names of the [options](options.md) with `_` for `-`, and `script`, `module` and `args` for the program. A key that is in the file twice, or that no option has, is an error with its line.

    script: train.py
    args: [--epochs, 8]
    nproc_per_node: 4
    max_restarts: 2
    env:
      NCCL_DEBUG: INFO

The sections `submit` (for all schedulers) and {SECTIONS} hold what [`clusterrun submit`](../submit.md) asks of a scheduler; a job that starts here does not read them.

Values are the text that they look like: `010` stays `010`, and `1:30:00` is no number. Flags and variables replace values of the file; `--env` adds to `env`. A key without a value is not set. In the repository `configs/reference.yaml` has every key with its default, `configs/one_node.yaml` is a short example.
"""

OPTIONS_PAGE = """\
# Options

    clusterrun [OPTIONS] SCRIPT [ARGS]

Options before SCRIPT are clusterrun's, options after it go to the script. A flag may be typed with `_` for `-`, and abbreviated until only one flag fits. Set an option in any of these places; the first one set counts:

1. the flag: `--max-restarts 2`
2. the variable `CLUSTERRUN_MAX_RESTARTS`, or `PET_MAX_RESTARTS` as torchrun has it; 1 or 0 for an option without a value
3. a key of the [job file](job_file.md): `max_restarts: 2`
4. the [cluster](../clusters.md), for nodes, ranks and addresses

`clusterrun --dry-run` prints each value and where it was set.
"""

TOKEN = "of your own: openssl rand -hex 32"  # noqa: S105 - no token
"""Stands in the manifests of configs for the secret that clusterrun submit makes for each job."""

PAGES = {
    options.Starting: "../workers.md",
    options.Workers: "../several_nodes.md",
    options.Placing: "../binding.md",
    options.Meeting: "../several_nodes.md",
    options.Joining: "../several_nodes.md",
    options.Failing: "../failures.md",
    options.Output: "../output.md",
    options.Files: "../output.md",
    options.Torchrun: "../coming_from.md",
    options.Launcher: "../machine.md",
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
        **{
            ROOT / f"configs/kubernetes/{kind.value}.yaml": kubernetes_manifest(kind)
            for kind in ManifestKind
        },
    }


def kubernetes_manifest(kind: ManifestKind) -> str:
    """Return what ``clusterrun submit`` writes for configs/everywhere.yaml, with no token in it."""
    asked = typed(config=str(ROOT / "configs/everywhere.yaml"), to="kubernetes", kind=kind.value)
    job = describe_submission(CommandLine(asked), {}, "python").submission
    return Kubernetes().script(replace(job, pods=replace(job.pods, token=TOKEN)))


def yaml_reference() -> str:
    return HEAD + "".join(_yaml_section(group) for group in SUBJECTS) + KEYS_OF_SECTIONS


def _yaml_section(group: type[Struct]) -> str:
    # As a key, module holds the module's name: it is one of the program's keys.
    rows = [row for row in rows_of(group).values() if row.option.in_file and row.name != "module"]
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


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---" for _ in heads], *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
