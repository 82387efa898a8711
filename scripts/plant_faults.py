"""Plant faults in the code, one at a time, and show which sets of tests notice them.

Each fault is planted in a copy of the checkout, and each set of tests runs on it until one test
fails; a run that takes too long counts as one that has noticed. Faults are drawn by a seed, each
function being as likely as another, or named in a file such as ``scripts/faults_of_policy.toml``:
``python scripts/plant_faults.py --faults 40 --source 'launcher/clusterrun/policy/{coordinator,node}.py'
--tests histories=tests/histories --tests units='tests/network tests/policy'``. Without ``--tests``
the faults are only listed. ``--with hosts,long`` adds the tests of several hosts, which need root,
and the long ones: give those more ``--seconds``. ``--results FILE`` continues where a run of the same
commit stopped.

Some of the faults that are drawn change nothing that matters: of each one that no set notices, a
reader decides whether a test is missing.
"""

import argparse
import ast
import asyncio
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "build", "dist")

SECONDS_TO_END = 60.0
"""From SIGINT until a run that takes too long is killed: tests end their hosts and daemons."""

MEMORY = 4 << 30
"""The address space of a run, in bytes: a loop without end must not take all memory."""

PYTEST = (
    *("-m", "pytest", "-x", "-v", "-rfE", "--tb=no", "-p", "no:cacheprovider"),
    *("-p", Path(__file__).stem),
)
"""``-v`` prints a test's name before it runs: the last one is that which takes too long."""

KINDS = ("hosts", "long", "wheel", "packages")
"""Marks of tests that run only if ``--with`` names them."""

COMMANDS = ("clusterrun", "torchrun", "shellcheck")
"""Tests take them from the interpreter's folder."""

ORIGINS = """
import sys
from importlib.util import find_spec

for name in sys.argv[1:]:
    print(spec.origin if (spec := find_spec(name)) else "nowhere")
"""

NOTICED_BY = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)
STARTED = re.compile(r"^\S+::\S+", re.MULTILINE)

HAVE_OPPOSITES = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
SWAPS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    **dict(zip(HAVE_OPPOSITES[::2], HAVE_OPPOSITES[1::2], strict=True)),
    **dict(zip(HAVE_OPPOSITES[1::2], HAVE_OPPOSITES[::2], strict=True)),
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}

TYPES = ("annotation", "returns", "decorator_list", "bases", "type_params")
"""Fields of syntax in which nothing is changed."""


class Fault(NamedTuple):
    """A change of a file: its bytes from ``start`` to ``end``; ``place`` is a function, or a name."""

    path: str
    place: str
    start: int
    end: int
    after: bytes

    def planted(self, data: bytes) -> bytes:
        return data[: self.start] + self.after + data[self.end :]

    def shown(self, root: Path) -> str:
        """Return where it is, and its lines before and after."""
        data = (root / self.path).read_bytes()
        first, last = data.rfind(b"\n", 0, self.start) + 1, data.find(b"\n", self.end - 1)
        changed = data[first : self.start] + self.after + data[self.end : last]
        before, after = (" ".join(it.decode().split()) for it in (data[first:last], changed))
        line = data.count(b"\n", 0, self.start) + 1
        return f"{self.path}:{line} {self.place}\n      {before}\n   -> {after}"


def main() -> None:
    options = parse()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    listed = (named_faults(options.root, path) for path in options.named)
    faults = [*chain.from_iterable(listed), *drawn_faults(options)]
    if not options.tests:
        print(*(fault.shown(options.root) for fault in faults), sep="\n")
        return
    try:
        asyncio.run(try_all(faults, options))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def parse() -> argparse.Namespace:
    """Return the options; ``tests`` are words for pytest, by the name of their set."""
    parser = argparse.ArgumentParser(description="Show whether tests notice faults in the code.")
    parser.add_argument("--seed", type=int, default=0, help="another one draws other faults")
    parser.add_argument("--faults", type=int, default=20, metavar="N", help="how many are drawn")
    parser.add_argument("--source", action="append", default=[], metavar="PATTERN", help="of files")
    parser.add_argument("--named", action="append", default=[], type=Path, metavar="TOML")
    parser.add_argument("--tests", action="append", default=[], metavar="NAME=WORDS_FOR_PYTEST")
    parser.add_argument("--with", default="", metavar="KINDS", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--seconds", type=float, default=300, help="that a set may take at most")
    parser.add_argument("--jobs", type=int, default=1, help="how many faults are tried at once")
    parser.add_argument("--results", type=Path, metavar="FILE", help="a line for each fault")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the checkout; default: this")
    options = parser.parse_args()
    for each in options.tests:
        if "=" not in each:
            parser.error(f"--tests {each}: give the set a name, as in --tests rooms=tests/agent")
    kinds = list(filter(None, vars(options)["with"].split(",")))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"--with {','.join(unknown)}: choose from {', '.join(KINDS)}")
    marks = " and ".join(f"not {kind}" for kind in KINDS if kind not in kinds)
    sets = (each.partition("=") for each in options.tests)
    options.tests = {name: ["-m", marks, *shlex.split(words)] for name, _, words in sets}
    return options


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Do as after Ctrl-C, for which asyncio ends the runs."""
    signal.raise_signal(signal.SIGINT)


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Have Hypothesis draw the same examples for each fault, and not shrink the one that fails.

    pytest calls this, after the tests' own: each run has this module as a plugin (see ``PYTEST``).
    """
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("planted", settings(), derandomize=True, database=None, phases=phases)
    settings.load_profile("planted")


# Which faults there are.


def named_faults(root: Path, listed: Path) -> Iterator[Fault]:
    """Yield the faults that a file lists: the text of each stands in its file exactly once."""
    for each in tomllib.loads(listed.read_text())["fault"]:
        data, before = (root / each["path"]).read_bytes(), each["before"].encode()
        if (count := data.count(before)) != 1:
            sys.exit(f"{listed}: {each['name']}: {each['path']} has the text {count} times")
        start = data.index(before)
        end = start + len(before)
        yield Fault(each["path"], each["name"], start, end, each["after"].encode())


def drawn_faults(options: argparse.Namespace) -> Iterator[Fault]:
    """Yield as many as wanted: first a function is drawn, then one of its faults."""
    faults = {}
    for file in files_of(options.root, options.source):
        finder = Finder(str(file.relative_to(options.root)), file.read_bytes())
        faults.update({(finder.path, place): found for place, found in finder.found.items()})
    generator = random.Random(options.seed)  # noqa: S311 - no secret
    for _ in range(options.faults):
        if not faults:
            return
        place = generator.choice(list(faults))
        yield faults[place].pop(generator.randrange(len(faults[place])))
        if not faults[place]:
            del faults[place]


def files_of(root: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files that patterns with ``*``, ``**`` and ``{one,other}`` name, in order."""
    found = {each: list(root.glob(each)) for each in chain(*map(without_braces, patterns))}
    for pattern, files in found.items():
        if not files:
            sys.exit(f"--source {pattern}: no such file in {root}")
    return sorted(set(chain(*found.values())))


def without_braces(pattern: str) -> list[str]:
    before, opening, rest = pattern.partition("{")
    if not opening:
        return [pattern]
    choices, _, after = rest.partition("}")
    return [before + each + tail for each in choices.split(",") for tail in without_braces(after)]


class Finder:
    """Finds what can be changed in a file, by function; what is in none belongs to the module."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.found: dict[str, list[Fault]] = {}
        self._starts = [0, *accumulate(map(len, data.splitlines(keepends=True)))]
        self._names: list[str] = []
        self._function: ast.AST | None = None
        self.visit(ast.parse(data))

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.JoinedStr() | ast.Expr(ast.Call(ast.Name("assert_never"))):
                return
            case ast.If() if self._function is None:
                # For type checkers, or of a program.
                return
            case ast.ClassDef() | ast.FunctionDef() if self._function is None:
                self._names.append(node.name)
                arguments = [] if isinstance(node, ast.ClassDef) else [node.args]
                self._function = node if arguments else None
                for part in (*arguments, *node.body):
                    self.visit(part)
                self._function = None
                self._names.pop()
                return
        if isinstance(node, ast.stmt) and self._function and can_go(node, self._function):
            self._note(node, "pass")
        for part, text in changes(node):
            self._note(part, text)
        for name, value in ast.iter_fields(node):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST) and name not in TYPES:
                    self.visit(part)

    def _note(self, node: ast.expr | ast.stmt, text: str) -> None:
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        place = ".".join(self._names) or "(module)"
        fault = Fault(self.path, place, start, end, text.encode())
        [planted] = ast.parse(text).body
        after = planted.value if isinstance(planted, ast.Expr) else planted
        if ast.dump(after) != ast.dump(node):
            self.found.setdefault(place, []).append(fault)


def can_go(statement: ast.stmt, function: ast.AST) -> bool:
    """Return whether a statement has an effect without which its function is still whole.

    To leave out the first assignment to a name would be noticed by all that reaches the next line.
    """
    match statement:
        case ast.Assign(targets):
            line = statement.lineno
            before = (it for it in ast.walk(function) if getattr(it, "lineno", line) < line)
            return names_bound(chain(*map(ast.walk, targets))) <= names_bound(before)
        case ast.AugAssign() | ast.Expr(ast.Call()):
            return True
        case _:
            return False


def names_bound(nodes: Iterable[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        match node:
            case ast.Name(name, ast.Store()) | ast.arg(name) | ast.MatchAs(name=str(name)):
                names.add(name)
    return names


def changes(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield the expressions of a node that can be changed, each with its new text."""
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            yield from opposite(node.test)
        case ast.match_case(guard=ast.expr() as guard):
            yield from opposite(guard)
        case ast.comprehension():
            yield from chain(*map(opposite, node.ifs))
        case ast.UnaryOp(ast.Not()):
            yield node, f"({ast.unparse(node.operand)})"
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, ast.unparse(ast.BoolOp(other, node.values))
        case ast.Compare():
            for at, operator in enumerate(node.ops):
                swapped = [*node.ops[:at], SWAPS[type(operator)](), *node.ops[at + 1 :]]
                yield node, ast.unparse(ast.Compare(node.left, swapped, node.comparators))
        case ast.Constant(bool() as value):
            yield node, str(not value)
        case ast.Constant(int() as value):
            yield node, str(value + 1)
        case ast.Constant(float() as value):
            yield node, repr(2 * value or 1.0)
        case ast.Tuple(elements, ast.Load()) if are_effects(elements):
            for at in range(len(elements)):
                fewer = [*elements[:at], *elements[at + 1 :]]
                yield node, ast.unparse(ast.Tuple(fewer, ast.Load()))
        case ast.Call(ast.Name("replace"), values, fields):
            # The assignments to a state that is frozen.
            for at in range(len(fields)):
                rest = [*fields[:at], *fields[at + 1 :]]
                yield node, ast.unparse(ast.Call(node.func, values, rest))


def opposite(test: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Yield the opposite of a condition, unless another of its changes is the same."""
    match test:
        case ast.UnaryOp(ast.Not()) | ast.Constant():
            return
        case ast.Compare(ops=[operator]) if isinstance(operator, HAVE_OPPOSITES):
            return
        case _:
            yield test, f"not ({ast.unparse(test)})"


def are_effects(elements: Sequence[ast.expr]) -> bool:
    """Return whether a tuple seems to hold what is to be done, and may as well have one less."""
    kinds = {type(each) for each in elements}
    return ast.Starred in kinds or kinds == {ast.Call}


# Which tests notice them.


async def try_all(faults: Sequence[Fault], options: argparse.Namespace) -> None:
    """Print each fault with the tests that notice it, then the table."""
    with tempfile.TemporaryDirectory(prefix="planted-", ignore_cleanup_errors=True) as folder:
        copies = asyncio.Queue[Path]()
        for job in range(options.jobs):
            copy = Path(folder, str(job))
            left_out = shutil.ignore_patterns(*NOT_COPIED)
            shutil.copytree(options.root, copy, symlinks=True, ignore=left_out)
            make_environment(copy)
            copies.put_nowait(copy)
        for name, words in options.tests.items():
            if test := await noticing_test(copy, words, options.seconds):
                sys.exit(f"--tests {name}: not passed, though there is no fault: {test}")
        results = Results(options)
        noticed = []
        async with asyncio.TaskGroup() as group:
            trials = [group.create_task(tried(fault, copies, options, results)) for fault in faults]
            for number, (fault, trial) in enumerate(zip(faults, trials, strict=True), 1):
                noticed.append(await trial)
                print(f"{number}. {fault.shown(options.root)}")
                for name, test in noticed[-1].items():
                    print(f"      {name}: {f'noticed by {test}' if test else 'NOT NOTICED'}")
                sys.stdout.flush()
    print_table(noticed, options.tests)


def make_environment(copy: Path) -> None:
    """Make an environment like this one, in which the copy is installed, and nothing hides it.

    Tests that run the command as a user does have no PYTHONPATH.
    """
    folder = environment_of(copy)
    venv.create(folder, symlinks=True)
    site_packages = next(folder.glob("lib/python*/site-packages"))
    modules = modules_of(copy)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name.startswith(("clusterrun", "__editable__", "__pycache__")):
            continue
        if entry.suffix == ".pth":
            (site_packages / entry.name).write_text(without_checkouts(entry, modules))
        else:
            (site_packages / entry.name).symlink_to(entry)
    paths = (copy / "launcher", Path(__file__).parent)
    (site_packages / "copy.pth").write_text("".join(f"{path}\n" for path in paths))
    for name in COMMANDS:
        command, its = Path(sys.executable).with_name(name), folder / "bin" / name
        if not command.exists():
            continue
        first, _, code = command.read_bytes().partition(b"\n")
        if first.startswith(b"#!"):
            its.write_bytes(f"#!{folder}/bin/python\n".encode() + code)
            its.chmod(0o755)
        else:
            its.symlink_to(command)
    expect_imported(copy, modules)


def modules_of(copy: Path) -> list[str]:
    """Return the names of the packages and modules that a copy has to test."""
    entries = sorted((copy / "launcher").iterdir())
    return [it.stem for it in entries if it.suffix == ".py" or (it / "__init__.py").exists()]


def without_checkouts(listed: Path, modules: Sequence[str]) -> str:
    """Return the lines of a .pth file but for the folders that have one of ``modules``.

    An editable install has such a line, and tests would import from that checkout, without the fault.
    """
    lines = listed.read_text().splitlines()
    return "".join(f"{line}\n" for line in lines if not has_any(listed.parent, line, modules))


def has_any(site_packages: Path, line: str, modules: Sequence[str]) -> bool:
    # A line that begins with import is code (the module site).
    folder = site_packages / ("" if line.startswith("import") else line.strip())
    names = chain(modules, (f"{name}.py" for name in modules))
    return folder != site_packages and any((folder / name).exists() for name in names)


def expect_imported(copy: Path, modules: Sequence[str]) -> None:
    """Exit if tests would import one of ``modules`` from elsewhere: they would notice no fault."""
    found = subprocess.run(
        [environment_of(copy) / "bin/python", "-c", ORIGINS, *modules],
        cwd=copy,
        env=variables(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for name, origin in zip(modules, found.stdout.splitlines(), strict=True):
        if not Path(origin).resolve().is_relative_to((copy / "launcher").resolve()):
            sys.exit(
                f"{name} is imported from {origin}, where no fault is planted: take that folder"
                f" out of the environment {sys.prefix}"
            )


def variables() -> dict[str, str]:
    """Return the environment of a run; PYTHONPATH may name a checkout."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, "PYTHONHASHSEED": "0"}


def environment_of(copy: Path) -> Path:
    return copy / ".venv"


class Results:
    """Which tests have noticed which faults, in a file that outlives a run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._file: Path | None = options.results
        self._run = [commit_of(options.root), options.tests] if self._file else []
        before = results_in(self._file) if self._file else []
        self._known = {json.dumps(key): noticed for key, noticed in before}

    def known(self, fault: Fault) -> dict[str, str] | None:
        return self._known.get(json.dumps(self._key(fault)))

    def add(self, fault: Fault, noticed: Mapping[str, str]) -> None:
        if self._file:
            with self._file.open("a") as file:
                print(json.dumps([self._key(fault), noticed]), file=file)

    def _key(self, fault: Fault) -> list[object]:
        return [*self._run, fault.path, fault.start, fault.end, fault.after.decode()]


def results_in(file: Path) -> list[Any]:
    """Return what the lines of a file of results say; it may not exist yet."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def commit_of(root: Path) -> str:
    """Return the commit of a checkout, and whether its code or tests have changed since."""
    git = ("git", "-C", str(root))
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    changed = subprocess.check_output([*git, "status", "--porcelain", "launcher", "tests"])
    return f"{commit}+" if changed else commit


async def tried(
    fault: Fault, copies: asyncio.Queue[Path], options: argparse.Namespace, results: Results
) -> dict[str, str]:
    """Return which test of each set notices a fault; "": none does."""
    if (known := results.known(fault)) is not None:
        return known
    copy = await copies.get()
    data = (copy / fault.path).read_bytes()
    try:
        write(copy / fault.path, fault.planted(data))
        noticed = {
            name: await noticing_test(copy, words, options.seconds)
            for name, words in options.tests.items()
        }
        results.add(fault, noticed)
        return noticed
    finally:
        write(copy / fault.path, data)
        copies.put_nowait(copy)


def write(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    # Compiled code is known by size and second, both of which may be those of the fault before.
    shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)


async def noticing_test(copy: Path, words: Sequence[str], seconds: float) -> str:
    """Return the first test that fails on a copy, or is not over in time; "": all pass."""
    with tempfile.TemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            *(str(environment_of(copy) / "bin/python"), *PYTEST, *words),
            cwd=copy,
            env=variables(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
            code = await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            code = None
        finally:
            await end(process)
        output.seek(0)
        printed = output.read().decode(errors="replace")
    if code == 0:
        return ""
    if code is None:
        return f"{['no test', *STARTED.findall(printed)][-1]}, not over after {seconds:g} s"
    failed = NOTICED_BY.search(printed)
    return failed[1] if failed else f"exit code {code}: {printed.strip()[-200:]}"


async def end(process: asyncio.subprocess.Process) -> None:
    """End a run with all that it has started; its tests end first what is in other sessions."""
    try:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), SECONDS_TO_END)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def print_table(noticed: Sequence[Mapping[str, str]], sets: Iterable[str]) -> None:
    counts = {name: sum(bool(tests[name]) for tests in noticed) for name in sets}
    counts["any of them"] = sum(any(tests.values()) for tests in noticed)
    print(f"\n| set of tests | noticed, of {len(noticed)} faults |\n| --- | --- |")
    print(*(f"| {name} | {count} |" for name, count in counts.items()), sep="\n")
    unnoticed = [str(at) for at, tests in enumerate(noticed, 1) if not any(tests.values())]
    print(f"Noticed by no set: {', '.join(unnoticed) or 'none'}.")


if __name__ == "__main__":
    main()
