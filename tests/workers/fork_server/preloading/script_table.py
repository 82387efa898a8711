r"""Tables of scripts, and what is found in each.

A table has sections, separated by empty lines:

    ## What the scripts of this section have in common
    file own.py: a file beside the scripts
    in: import numpy\n{}\nimport tqdm
    shows: preloaded, side effect
    => what is found where a line has no other result
    BATCH = 64
    numpy.setup() => numpy; side effect script.py:2

Each other line is a script, or what takes the place of ``{}`` in one; ``\n`` ends a line of it.
``-m own.train`` is a module that ``python -m`` runs. ``shows`` names the facts that are compared.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest


class Row(NamedTuple):
    """A script with files beside it, and what is found in it."""

    files: dict[str, str]
    script: str
    shows: list[str]
    found: str


def rows_of(table: str) -> list[object]:
    """Return the parameters of a test: a row for each line of a table beside this file."""
    text = re.sub(r"(?m)^# .*\n", "", Path(__file__).with_name(table).read_text())
    sections = text.strip().split("\n\n")
    return [row for section in sections for row in rows_in(section.splitlines())]


def rows_in(lines: list[str]) -> Iterator[object]:
    files: dict[str, str] = {}
    template, shows, usual = "{}", [""], ""
    for line in lines:
        word, _, text = line.partition(" ")
        if word == "file":
            name, _, content = text.partition(":")
            files[name] = content.strip().replace("\\n", "\n")
        elif word == "in:":
            template = text
        elif word == "shows:":
            shows = text.split(", ")
        elif word == "=>":
            usual = text
        elif word != "##":
            code, _, found = line.partition(" => ")
            script = template.replace("{}", code).replace("\\n", "\n")
            yield pytest.param(Row(files, script, shows, found or usual), id=code)
