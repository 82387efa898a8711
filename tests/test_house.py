"""The rules of the house that no type checker knows."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.launched import plain_environment
from tests.imports import output_of

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "launcher").rglob("*.py"))

TOP_LEVEL = {
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "configs",
    "docs",
    "launcher",
    "pyproject.toml",
    "scripts",
    "tests",
}
MODULES_BEFORE_THE_FIRST_WORKER = 110
"""What the agent may import of clusterrun, by the count of scripts/walk: each takes start-up time."""

UNCLEAR = (
    *("told", "said", "heard", "hears", "wish", "wishes", "quarrel", "surroundings"),
    *("nobody", "somebody", "whoever", "whose absence", "but for", "so many", "is there"),
    *("has come", "at home"),
)
"""Words in whose place messages and pages use a term: nodes report, an option is set."""

ERRORS = ("Error", "Fault", "Rejection", "PortInUse")
"""What errors are made by: a message and a hint."""

OTHER_STYLE = re.compile(
    r"\bcannot\b|\w\.$|(?<!there )\b(?:is|are) no (?!such|longer)"
    r"|^(?:Check|Correct|Find|Give|If|Install|Or|Run|Set|Start|Stop|The|This|Type)\b",
    re.MULTILINE,
)

READS_THE_ENVIRONMENT = (
    *("cli", "clients", "lightning.py", "suspend.py"),
    *("workers/fork_server", "workers/startup", "workers/pdb"),
)
"""Rooms whose code is the first of a process, or runs in one of the user's."""

MAY_SHARE_A_NAME = {
    "HoldRanks": "an action, and the message that it follows from",
    "Stop": "options of clusterrun stop, and a message of the coordinator's",
    "WorkerFailed": "an exception that users catch, and an outcome, which has its name in reports",
    "Workers": "a subject of options, and what users import from clusterrun",
}
"""Classes of one name in two files: a message has its name on the wire, a subject in ``--help``."""


def relative(path: Path) -> str:
    """Return a path as people name it: from the root."""
    return str(path.relative_to(ROOT))


def texts_in(source: Path) -> Iterator[str]:
    """Yield the texts of a file that are no docstrings: what is printed is among them."""
    tree = ast.parse(source.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(str(text)) if id(node) not in docstrings:
                yield text


def sentences_in(node: ast.AST) -> Iterator[str]:
    """Yield the texts of an expression, with {} for what is filled in."""
    match node:
        case ast.JoinedStr(values):
            yield "".join(str(it.value) if isinstance(it, ast.Constant) else "{}" for it in values)
        case ast.Constant(str(text)):
            yield text
        case _:
            for part in ast.iter_child_nodes(node):
                yield from sentences_in(part)


@pytest.mark.needs("git")
def test_the_top_level_is_what_a_visitor_needs() -> None:
    """These names, and files that begin with a dot."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")

    # The checkout may belong to another user, who is trusted as far as listing goes.
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    names = {line.partition("/")[0] for line in done.stdout.splitlines()}

    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL


def test_pages_and_messages_use_plain_words() -> None:
    """Plain terms of the field take their place."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    lines = [
        (f"{relative(page)}:{number}", line)
        for page in pages
        for number, line in enumerate(page.read_text().splitlines(), 1)
    ]
    lines += [(relative(source), text) for source in SOURCES for text in texts_in(source)]
    unclear = re.compile(rf"\b({'|'.join(UNCLEAR)})\b", re.IGNORECASE)

    found = [f"{place}: {match[1]}" for place, text in lines for match in unclear.finditer(text)]

    assert found == []


def test_a_class_has_a_name_of_its_own() -> None:
    """One term for one thing: a reader who knows a name knows the class, in any file."""
    files: dict[str, list[str]] = {}
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(relative(source))

    shared = {name: places for name, places in files.items() if len(places) > 1}

    assert {name: it for name, it in shared.items() if name not in MAY_SHARE_A_NAME} == {}
    assert {name: len(it) for name, it in shared.items()} == dict.fromkeys(MAY_SHARE_A_NAME, 2)


def test_errors_are_written_in_one_style() -> None:
    """docs/contributing.md has it: no capital, no full stop, "can't" and "is not a"."""
    found = [
        f"{relative(source)}:{node.lineno}: {text}"
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(ERRORS)
        for text in sentences_in(node)
        if OTHER_STYLE.search(text)
    ]

    assert found == []


def test_the_environment_is_read_at_the_door() -> None:
    """It is an argument everywhere else. The fork server is a process of its own."""
    readers = {
        file
        for file in SOURCES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv")
    }
    allowed = tuple(f"launcher/clusterrun/{place}" for place in READS_THE_ENVIRONMENT)

    assert [name for name in map(relative, sorted(readers)) if not name.startswith(allowed)] == []


def test_descriptors_are_not_closed_by_number() -> None:
    """Up to a limit of 1,073,741,816, that takes minutes where Python has no close_range."""
    closers = [file for file in SOURCES if "closerange(" in file.read_text()]

    assert [relative(file) for file in closers] == []


def test_import_clusterrun_imports_nothing_else() -> None:
    """Scripts may import it in every worker; it starts nothing and reads nothing."""
    code = (
        "import sys, threading; before = set(sys.modules); import clusterrun;"
        "print(*sorted(set(sys.modules) - before), threading.active_count())"
    )

    assert output_of(code).split() == ["clusterrun", "1"]


def test_few_modules_are_imported_for_one_worker(tmp_path: Path) -> None:
    """What only some jobs need is imported where it is needed."""
    script = tmp_path / "prints.py"
    script.write_text("print('printed by the worker')")
    words = ["--nproc-per-node", "1", str(script)]

    done = subprocess.run(
        [sys.executable, ROOT / "scripts/walk", *words],
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stderr == "printed by the worker\n"
    assert done.stdout.startswith(f"{' '.join(words)}: exit code 0\n")
    [modules] = re.findall(r"(\d+) modules", done.stdout)
    assert int(modules) <= MODULES_BEFORE_THE_FIRST_WORKER
