"""Whole jobs as text: what happens to ranks and nodes, and what follows.

A file in ``jobs/`` has histories, separated by empty lines:

    # failure stops all nodes: why it does.
    with $code=7
    job nodes=2 restarts=1
    exits 1 code=$code; time passes 0.5
      node 0 prints: rank 1 on n1 failed: stopping 1 worker on this node
      ...

``job`` starts a job whose ranks run, ``rendezvous`` one that only node 0 has joined; ``service`` lines
before it are its services. The other lines are methods of ``Job`` with their arguments. Those of one line
happen one after the other; then all messages arrive, all output is read and all is cleaned up, unless the
line ends with ``at once:`` or ``delivers all``. What follows is indented: all effects in order, or
"nothing"; lines without are not compared. ``...`` stands for any lines, alone or before a line. After a
method that returns something, that is what follows. ``exits 0 | sends`` shows only lines with that text.

A history with ``with`` lines runs once for each of them. A paragraph ``= name`` is a beginning: histories
of its file start ``from`` it.
"""

import ast
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import pytest

from tests.histories.job_history import Job
from tests.histories.join_history import JoinHistory

TEXTS = sorted((Path(__file__).parent / "jobs").glob("*.txt"))
AT_ONCE = ", at once:"
WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s;"'])+""")
EVENT = re.compile(r"""(?:"[^"]*"|'[^']*'|[^;"'])+""")
VALUE = re.compile(r"""\$(\w+)="?((?<=")[^"]*|\S*)""")


def histories() -> Iterator[Any]:
    """Yield the lines of each history, for each of its rows."""
    for path in TEXTS:
        beginnings = dict[str, list[str]]()
        for text in path.read_text().strip().split("\n\n"):
            title, *rest = text.splitlines()
            if title.startswith("= "):
                beginnings[f"from {title[2:]}"] = rest
                continue
            body = [line for line in rest if not line.startswith(("#", "with "))]
            for row in [line for line in rest if line.startswith("with ")] or [""]:
                values = dict(VALUE.findall(row))
                lines = [Template(line).substitute(values) for line in body]
                name = f"{path.stem}: {title[2:].partition(':')[0]} {' '.join(values.values())}"
                yield pytest.param(
                    [each for line in lines for each in beginnings.get(line, [line])],
                    id=name.strip(),
                )


@pytest.mark.parametrize("lines", [*histories()])
def test_history(lines: list[str]) -> None:
    services: dict[str, Any] = {}
    job: Any = None
    for event, follows in steps(lines):
        kind, *words = WORD.findall(event)
        if kind == "service":
            services[words[0]] = arguments(words[1:])[1]
            continue
        if kind == "job":
            job, services = Job(**arguments(words)[1], services=services or None), {}
            seen = job.began
        elif kind == "rendezvous":
            job = JoinHistory(**arguments(words)[1])
            seen = job.settles().new_lines()
        else:
            seen = what_follows(job, event)
        if follows and not re.fullmatch(pattern_of(follows), "".join(f"{line}\n" for line in seen)):
            assert seen == follows


def steps(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each line that happens, with the indented ones after it."""
    at = [number for number, line in enumerate(lines) if not line.startswith(" ")]
    for first, end in zip(at, [*at[1:], len(lines)], strict=True):
        yield lines[first], [line.strip() for line in lines[first + 1 : end]]


def what_follows(job: Any, line: str) -> list[str]:
    line, _, shown = line.partition(" | ")
    for event in EVENT.findall(line.removesuffix(AT_ONCE)):
        words = WORD.findall(event)
        length = next(n for n in range(len(words), 0, -1) if hasattr(job, "_".join(words[:n])))
        values, named = arguments(words[length:])
        done = getattr(job, "_".join(words[:length]))(*values, **named)
        if done is not job:
            return done if isinstance(done, list) else [done]
    if not line.endswith((AT_ONCE, "delivers all")):
        job.settles()
    return [each for each in job.new_lines() if shown in each]


def arguments(words: list[str]) -> tuple[list[Any], dict[str, Any]]:
    named = dict(word.split("=", 1) for word in words if re.match(r"\w+=", word))
    positional = [value_of(word) for word in words if not re.match(r"\w+=", word)]
    return positional, {name: value_of(text) for name, text in named.items()}


def value_of(word: str) -> Any:
    if word in signal.Signals.__members__:
        return signal.Signals[word]
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word


def pattern_of(follows: list[str]) -> str:
    if follows == ["nothing"]:
        return ""
    escaped = (f"{re.escape(line)}\n" for line in follows)
    return "".join(re.sub(r"^(?:\\\.){3}(?:\\ |\n)", r"(?:.*\\n)*", line) for line in escaped)
