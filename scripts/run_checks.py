"""Run the checks and tests of this checkout side by side; scripts/check has found the environment.

Tests of one machine run in five processes: on two cores, some of them wait while two compute. Tests on
several hosts run in three more, beside four; one has those that need sshd or Slurm. Tests that
are marked ``alone`` follow when all others are over. The long tier has stages of its own, after these.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from xml.etree.ElementTree import Element
from xml.etree.ElementTree import parse as parse_xml

ROOT = Path(__file__).resolve().parent.parent

AT_LEAST = {"contract": 1200, "histories": 550, "properties": 30, "rest": 5000}
AT_LEAST_ON_HOSTS = {"hosts": 240}
AT_LEAST_IN_LONG_RUNS = {"contract": 1200}
"""No fewer tests of each kind may run: a suite that is not found must not pass.

About nine tenths of what there is, so that tests can come and go. ``tests/conftest.py`` says of which
kind a test is.
"""

PURE = (
    "tests/histories",
    "tests/job/clusters",
    "tests/job/test_lines.py",
    "tests/planning",
    "tests/policy",
    "tests/network",
    "tests/report",
    "tests/run",
)
"""These tests must reach each branch of the rooms that do no I/O (see pyproject.toml)."""

ON_OTHER_PYTHONS = (
    "tests/contract/ends",
    "tests/contract/output",
    "tests/contract/preloading",
)
"""These tests also run with two other Pythons for the workers; tests/contract/in_place has each one."""

NOT_CHECKED = "not packages"
"""These tests take longer than all others together, and change only with those packages or torch."""

OF_DRAWN_MACHINES = ("tests/machine/test_any_machine.py", "tests/planning/test_properties.py")
"""These tests also run with many more machines."""

IN_TWO = ("pytest", "-n", "2", "--dist", "worksteal")
"""In two processes."""

SPELLED = ("launcher", "tests", "scripts", "docs", "configs", "README.md", "CHANGELOG.md")

SECONDS_OF_A_STAGE = 30 * 60.0
SECONDS_OF_A_LONG_STAGE = 60 * 60.0

SECONDS_BETWEEN_LINES = 30.0
"""If the output is not a terminal. On a terminal, one line is rewritten each second."""

PERCENTAGE = re.compile(r"\[ *(\d+%)\]")
SUMMARY = "short test summary info"


class Step:
    """A command whose output goes to a file, and how it ended."""

    def __init__(self, name: str, *command: str) -> None:
        self.name = name
        self.command = command
        self.seconds = 0.0
        self.code: int | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the command runs

    def start(self) -> None:
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def is_over(self) -> bool:
        if self.code is None and (code := self._process.poll()) is not None:
            self.code = code
            self.seconds = time.monotonic() - self._began
        return self.code is not None

    def end(self) -> None:
        """Interrupt the command, which ends what it has started; kill it if it does not end."""
        if not self.is_over():
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(60)
            self.is_over()

    def printed(self) -> str:
        # Not by the position of the file, which the command shares.
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def progress(self) -> str:
        """Return the name, and the percentage of tests that are over."""
        return " ".join([self.name, *PERCENTAGE.findall(self.printed())[-1:]])


def main() -> int:
    host_commands = os.environ.pop("HOST_COMMANDS", "").split()
    options = parse()
    # With it, each of the processes would compile all tests anew, for 6 s.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, exit_on_signal)
    checks = [
        Step("ruff format", "ruff", "format", "--check"),
        Step("ruff check", "ruff", "check"),
        Step("lint-imports", "lint-imports", "--no-logo"),
        Step("codespell", "codespell", *SPELLED),
        Step("mypy", "mypy"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        if options.bare:
            hide(host_commands, Path(folder))
        # Links that lead nowhere, and pages that no menu has, are errors.
        mkdocs = ("mkdocs", "build", "--quiet", "--strict", "-f", ".mkdocs.yml", "-d")
        checks.append(Step("mkdocs", *mkdocs, f"{folder}/site"))
        if options.tests:
            return run_chosen(checks, options)
        reports = Path(folder)
        steps = run([*checks, *first_tier(options, reports)], options)
        for stage in long_tier(options, reports) if options.long else ():
            steps += run(stage, options)
        steps += run(tests_that_run_alone(options, reports), options)
        if options.coverage:
            steps += run([Step("coverage", "coverage", "report")], options)
        return conclude(steps, reports, options)


def parse() -> argparse.Namespace:
    """Return the options; ``tests`` are the words after ``--``."""
    parser = argparse.ArgumentParser(prog="scripts/check", allow_abbrev=False)
    parser.add_argument("--hosts", action="store_true", help="also what needs several hosts")
    parser.add_argument("--long", action="store_true", help="also rounds, soaks and benchmarks")
    parser.add_argument("--coverage", action="store_true", help="also coverage of the pure rooms")
    parser.add_argument("--wheel", action="store_true", help="also the wheel; --long has it, too")
    parser.add_argument(
        "--bare", action="store_true", help="as on a machine without the tools of --hosts"
    )
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:at])
    options.tests = words[at + 1 :]
    return options


def hide(commands: Iterable[str], folder: Path) -> None:
    """Remove ``commands`` from PATH: links in ``folder`` to all others replace the folders with one."""
    places = []
    for number, place in enumerate(os.environ["PATH"].split(os.pathsep)):
        names = {file.name for file in Path(place).glob("*")}
        links = folder / f"path-{number}"
        if names.isdisjoint(commands):
            places.append(place)
            continue
        links.mkdir()
        for name in names.difference(commands):
            (links / name).symlink_to(Path(place, name))
        places.append(str(links))
    os.environ["PATH"] = os.pathsep.join(places)


def exit_on_signal(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def run_chosen(checks: Sequence[Step], options: argparse.Namespace) -> int:
    """Run the checks, then the chosen tests in one process, whose output is seen as it comes."""
    steps = run(checks, options)
    chosen = {
        "hosts": options.hosts,
        "long": options.long,
        "wheel": options.long or options.wheel,
    }
    marks = [f"not {mark}" for mark, wanted in chosen.items() if not wanted]
    command = ["pytest", "-q", "-m", " and ".join([*marks, NOT_CHECKED]), *options.tests]
    print("==", " ".join(command), flush=True)
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    failed = [step.name for step in steps if step.code != 0]
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if code or failed else 0


def first_tier(options: argparse.Namespace, reports: Path) -> list[Step]:
    here = ("not hosts", "not alone", "not wheel", "not long", NOT_CHECKED)
    steps = []
    if options.wheel or options.long:
        steps.append(pytest("tests of the wheel", reports, ("wheel",)))
    of_one_machine = ["-n", "4" if options.hosts else "5", "--dist", "worksteal"]
    if options.coverage:
        command = ("coverage", "run", "-m", "pytest", *PURE)
        steps.append(pytest("tests of pure rooms", reports, here, command))
        of_one_machine += [f"--ignore={path}" for path in PURE]
    steps.append(pytest("tests", reports, here, ("pytest", *of_one_machine)))
    if options.hosts:
        on_hosts = ("hosts", "not alone", "not long")
        steps += [
            pytest("tests of several hosts", reports, (*on_hosts, "not daemons"), IN_TWO),
            pytest("tests with ssh and Slurm", reports, (*on_hosts, "daemons")),
        ]
    return steps


def long_tier(options: argparse.Namespace, reports: Path) -> Iterator[list[Step]]:
    """Yield the stages of the long tier: fewer processes, as a long test needs more of the machine."""
    long = ("long", "not alone", "not wheel", NOT_CHECKED)
    tests = [pytest("long tests", reports, (*long, "not hosts"), IN_TWO)]
    if options.hosts:
        on_hosts = (*long, "hosts")
        tests += [
            pytest("long tests of several hosts", reports, (*on_hosts, "not daemons"), IN_TWO),
            pytest("long tests with ssh and Slurm", reports, (*on_hosts, "daemons")),
        ]
    yield tests
    others = (*IN_TWO, "--workers-python", "oldest-and-newest", *ON_OTHER_PYTHONS)
    many = ("pytest", "--rounds", "5", *OF_DRAWN_MACHINES)
    short = ("not long", "not alone", NOT_CHECKED)
    yield [
        pytest("tests on other Pythons", reports, short, others),
        pytest("tests of many machines", reports, short, many),
    ]


def tests_that_run_alone(options: argparse.Namespace, reports: Path) -> list[Step]:
    where = () if options.hosts else ("not hosts",)
    tier = () if options.long else ("not long",)
    return [pytest("tests that run alone", reports, ("alone", *where, *tier))]


def pytest(
    name: str, reports: Path, marks: Iterable[str], command: Sequence[str] = ("pytest",)
) -> Step:
    report = f"--junitxml={reports / name}.xml"
    return Step(name, *command, "-q", "-m", " and ".join(marks), report)


def run(steps: Sequence[Step], options: argparse.Namespace) -> list[Step]:
    """Run commands side by side; what the failed ones have printed follows their end."""
    limit = SECONDS_OF_A_LONG_STAGE if options.long else SECONDS_OF_A_STAGE
    deadline = time.monotonic() + limit
    try:
        for step in steps:
            step.start()
        running = list(steps)
        line = MovingLine()
        while running and time.monotonic() < deadline:
            for step in [step for step in running if step.is_over()]:
                running.remove(step)
                line.clear()
                show(step)
            line.write(", ".join(step.progress() for step in running))
            time.sleep(0.2)
        line.clear()
    finally:
        for step in steps:
            step.end()
    for step in running:
        print(f"== {step.name}: not over after {limit:.0f} s, ended", flush=True)
        show(step)
    return list(steps)


class MovingLine:
    """Prints what is running: on a terminal by rewriting a line, elsewhere as a line now and then."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = 0.0

    def write(self, text: str) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        at_once = sys.stdout.isatty()
        self._next = now + (1.0 if at_once else SECONDS_BETWEEN_LINES)
        line = f"   {now - self._began:.0f} s: {text}"
        if at_once:
            width = os.get_terminal_size(sys.stdout.fileno()).columns - 1
            print(f"\r{line[:width]}\x1b[K", end="", flush=True)
        else:
            print(line, flush=True)

    def clear(self) -> None:
        if sys.stdout.isatty():
            print("\r\x1b[K", end="", flush=True)
            self._next = 0.0


def show(step: Step) -> None:
    """Print how a command ended, and its output if it failed."""
    text = step.printed().rstrip()
    if step.code == 0 and "pytest" in step.command:
        # The skipped tests with their reasons, and the counts.
        _, _, text = text.rpartition(SUMMARY) if SUMMARY in text else text.rpartition("\n")
        text = text.lstrip(" =\n")
    elif step.code == 0:
        text = ""
    ended = "passed" if step.code == 0 else f"FAILED (exit code {step.code})"
    print(f"== {step.name}: {ended}, {step.seconds:.0f} s", *([text] if text else []), sep="\n")
    sys.stdout.flush()


def cases_in(reports: Path) -> Iterator[Element]:
    for report in reports.glob("*.xml"):
        yield from parse_xml(report).iter("testcase")  # noqa: S314 - our own pytest's


def count(cases: Iterable[Element]) -> Counter[tuple[str, str]]:
    """Return the number of tests by kind and by how they ended: passed, failed or skipped."""
    counts: Counter[tuple[str, str]] = Counter()
    for case in cases:
        kinds = [it.get("value", "") for it in case.iter("property") if it.get("name") == "kind"]
        ends = {child.tag for child in case}
        bad = ends & {"failure", "error"}
        end = "failed" if bad else "skipped" if "skipped" in ends else "passed"
        counts[kinds[0] if kinds else "rest", end] += 1
    return counts


def left_out(cases: Iterable[Element], options: argparse.Namespace) -> Iterator[str]:
    """Yield the tests that were skipped for want of something, by what it is, and those not asked for."""
    reasons = (it.get("message", "") for case in cases for it in case.iter("skipped"))
    needs = Counter(reason for reason in reasons if reason.startswith("needs "))
    for reason, number in sorted(needs.items()):
        yield f"{number} that {'need' if number > 1 else 'needs'} {reason.removeprefix('needs ')}"
    if not options.hosts:
        yield "those of several hosts (--hosts)"
    if not options.long:
        yield "long ones (--long)"
    if not options.long and not options.wheel:
        yield "those of the wheel (--wheel)"


def conclude(steps: Sequence[Step], reports: Path, options: argparse.Namespace) -> int:
    """Print the skipped tests and the counts; return the exit code.

    The last line has the tests that failed and the other steps that did, as CI reads it.
    """
    cases = count(cases_in(reports))
    print("   tests left out:", "; ".join(left_out(cases_in(reports), options)) or "none")
    wanted = Counter(AT_LEAST)
    wanted.update(AT_LEAST_ON_HOSTS if options.hosts else {})
    wanted.update(AT_LEAST_IN_LONG_RUNS if options.long else {})
    ends = Counter[str]()
    failed = [step.name for step in steps if step.code != 0]
    for kind in sorted({kind for kind, _ in cases} | wanted.keys()):
        counts = {end: cases[kind, end] for end in ("passed", "failed", "skipped")}
        ends.update(counts)
        # Without CI, a test that is skipped because root or a tool is missing counts as run.
        ran = counts["passed"] + counts["failed"] + (0 if "CI" in os.environ else counts["skipped"])
        print(f"   {kind}: {', '.join(f'{count} {end}' for end, count in counts.items())}")
        if ran < wanted[kind]:
            failed.append(
                f"{ran} tests of the kind '{kind}' ran, at least {wanted[kind]} should have"
            )
    # Failed tests explain why their step has failed.
    others = [name for name in failed if not (ends["failed"] and name.startswith("tests"))]
    bad = ends["failed"] + len(others)
    names = f" ({', '.join(failed)})" if failed else ""
    print(f"{ends['passed']} passed, {bad} failed, {ends['skipped']} skipped{names}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
