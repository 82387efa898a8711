"""The README says what the code does."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

from clusterrun.errors import ExitCode
from clusterrun.sources.options.option import Kind
from clusterrun.sources.options.table import OPTIONS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def first_cells(heading: str) -> Iterator[str]:
    """Yield the first cell of each row of the table whose first column has this heading."""
    table = README.partition(f"| {heading} |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        yield row.strip("| ").partition(" |")[0]


def test_every_exit_code_is_explained() -> None:
    """No code of ours is missing, and none is there that we never give."""
    told = {int(cell) for cell in first_cells("exit code") if cell.isdigit()}

    assert told == set(ExitCode)


def test_every_option_is_explained() -> None:
    """The table of options is that of the code, and only those that take a value show one."""
    told = {cell.strip("`").partition(" ")[::2] for cell in first_cells("option")}

    assert {(flag, bool(value)) for flag, value in told} == {
        (option.flag, option.kind not in {Kind.FLAG, Kind.OPTIONAL}) for option in OPTIONS
    }


def test_the_drawing_is_what_topo_prints() -> None:
    """Of a machine that the tests of the drawing have to the letter."""
    drawing = (ROOT / "tests/report/drawings/h100.txt").read_text()

    assert indent(drawing, "    ") in README


def test_links_lead_somewhere() -> None:
    """Files that the README names are there."""
    targets = re.findall(r"\]\(([^)#:]+)\)", README)

    assert [target for target in targets if not (ROOT / target).exists()] == []
