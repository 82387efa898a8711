"""Write what follows from the tables of options and commands, so that no page differs from them.

Run it from anywhere after a change of either table: ``python scripts/write_reference.py``. It writes
configs/reference.yaml, the manifests in configs/kubernetes, docs/reference/job_file.md and
docs/reference/options.md.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import indent, wrap

from door import (
    ALL_SCHEDULERS,
    BY_GROUP,
    COMMANDS,
    MODULE,
    SCHEDULERS,
    Command,
    CommandLine,
    Group,
    Kind,
    Kubernetes,
    ManifestKind,
    Option,
    describe_submission,
    flag,
)
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

Values are the text that they look like: `010` stays `010`, and `1:30:00` is no number. Flags and variables replace values of the file; `--env` adds to `env`. A key without a value is not set.

## Every key with its default

"""

OPTIONS_PAGE = """\
# Options

    clusterrun [OPTIONS] SCRIPT [ARGS]

Options before SCRIPT are clusterrun's, options after it go to the script. A flag may be typed with `_` for `-`, and abbreviated until only one flag fits. Set an option in any of these places; the first one set counts:

1. the flag: `--max-restarts 2`
2. the variable `CLUSTERRUN_MAX_RESTARTS`, or `PET_MAX_RESTARTS` as torchrun has it; 1 or 0 for an option without a value
3. a key of the [job file](job_file.md): `max_restarts: 2`
4. the [cluster](../platforms.md), for nodes, ranks and addresses

`clusterrun --dry-run` prints each value and where it was set.
"""

TOKEN = "of your own: openssl rand -hex 32"  # noqa: S105 - no token
"""Stands in the manifests of configs for the secret that clusterrun submit makes for each job."""

PAGES = {
    Group.STARTING: "../workers.md",
    Group.WORKERS: "../several_nodes.md",
    Group.PLACING: "../binding.md",
    Group.MEETING: "../several_nodes.md",
    Group.JOINING: "../several_nodes.md",
    Group.FAILING: "../failures.md",
    Group.OUTPUT: "../output.md",
    Group.FILES: "../output.md",
    Group.TORCHRUN: "../coming_from.md",
    Group.LAUNCHER: "../machine.md",
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
        ROOT / "docs/reference/job_file.md": JOB_FILE + indent(yaml_reference(), " " * 4),
        ROOT / "docs/reference/options.md": options_page(),
        **{
            ROOT / f"configs/kubernetes/{kind.value}.yaml": kubernetes_manifest(kind)
            for kind in ManifestKind
        },
    }


def kubernetes_manifest(kind: ManifestKind) -> str:
    """Return what ``clusterrun submit`` writes for configs/everywhere.yaml, with no token in it."""
    flags = {
        "config": str(ROOT / "configs/everywhere.yaml"),
        "to": "kubernetes",
        "kind": kind.value,
    }
    job = describe_submission(CommandLine(flags, ()), {}, "python").submission
    return Kubernetes().script(replace(job, pods=replace(job.pods, token=TOKEN)))


def yaml_reference() -> str:
    return HEAD + "".join(_yaml_section(group) for group in Group) + KEYS_OF_SECTIONS


def _yaml_section(group: Group) -> str:
    # As a key, module holds the module's name: it is one of the program's keys.
    rows = [row for row in BY_GROUP[group] if row.in_file and row is not MODULE]
    return f"\n\n# {group.value}\n" + "".join(f"\n{_yaml_entry(row)}\n" for row in rows)


def _yaml_entry(option: Option[object]) -> str:
    default = f" Default: {option.default_words}." if option.default_words else ""
    comment = wrap(f"{option.help}.{default}", width=98, break_on_hyphens=False)
    line = f"{option.name}: {option.default_text}".rstrip()
    return "\n".join([*(f"# {text}" for text in comment), line])


def options_page() -> str:
    commands = _table(("command", "what it does"), map(_command_cells, COMMANDS))
    groups = [*map(_group_section, Group), *map(_command_section, COMMANDS)]
    return "\n".join([OPTIONS_PAGE, "## Commands\n", commands, *filter(None, groups)])


def _command_section(command: Command) -> str:
    """Return the options that only this command takes; "" if it has none."""
    if not command.rows:
        return ""
    rows = [_option_cells(option) for option in command.its_own_options]
    heads = ("option", "what it does", "default")
    return f"## clusterrun {command.typed}\n\n{command.about}\n\n{_table(heads, rows)}"


def _group_section(group: Group) -> str:
    rows = [_option_cells(option) for option in BY_GROUP[group]]
    link = (
        f"More: [{PAGES[group].removeprefix('../')}]({PAGES[group]}).\n\n" if group in PAGES else ""
    )
    return f"## {group.value}\n\n{link}{_table(('option', 'what it does', 'default'), rows)}"


def _option_cells(option: Option[object]) -> tuple[str, str, str]:
    # The brackets of a value that may be left out touch the name.
    space = "" if option.kind is Kind.OPTIONAL else " "
    others = [*map(flag, option.aliases), *([f"-{option.short}"] if option.short else [])]
    named = "".join(f", `{other}`" for other in others)
    default = "" if option.default_text == "false" else option.default_words or option.default_text
    return (
        f"`{option.flag}{space}{option.metavar}`".replace(" `", "`") + named,
        option.help,
        default,
    )


def _command_cells(command: Command) -> tuple[str, str]:
    script = "[OPTIONS] SCRIPT [ARGS]" if command.takes_script else ""
    words = " ".join(filter(None, (command.typed, command.metavar, command.word, script)))
    return f"`clusterrun {words or '[OPTIONS] SCRIPT [ARGS]'}`", command.summary


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---" for _ in heads], *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
