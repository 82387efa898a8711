"""Excerpts of standard error, most of it printed by real interpreters.

``tracebacks.txt`` has scripts, in lines that begin with ``>``, and what follows from what they print:
the exception, the first and last line of the excerpt, and how often it has a line.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from clusterrun.policy.tracebacks import beginning_of_traceback, plain_lines
from clusterrun.report.excerpt import exception_line, excerpt
from clusterrun.workers.relay.recent_output import Tail


def standard_error_of(source: str, folder: Path, environ: Mapping[str, str] | None = None) -> str:
    script = folder / "train.py"
    script.write_text(dedent(source))
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=folder,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stderr


SCRIPTS = re.findall(
    r"(?m)((?:^> .*\n)+)((?:^[^>#\n].*\n)+)",
    (Path(__file__).parent / "tracebacks.txt").read_text(),
)


@pytest.mark.parametrize(
    ("script", "expected"), SCRIPTS, ids=[expected.splitlines()[0] for _, expected in SCRIPTS]
)
def test_traceback_of_a_script(script: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f():\n    x = 1\n    y = 1 2\n")

    tail = standard_error_of(script.replace("> ", "", 1).replace("\n> ", "\n"), tmp_path)

    shown = excerpt(tail)
    for what, _, text in (line.partition(":") for line in expected.splitlines()):
        match what:
            case "printed":
                assert text[1:] in tail.splitlines()
            case "exception":
                assert exception_line(tail) == text[1:]
            case "first" | "last":
                assert shown[0 if what == "first" else -1] == text[1:]
            case _:
                assert f"{shown.count(text[1:])} times" == what


@pytest.mark.parametrize("locals_too", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_traceback_of_rich(encoding: str, tmp_path: Path, *, locals_too: bool) -> None:
    """The library typer uses rich. The exception comes after the box."""
    tail = standard_error_of(
        f"""
        import rich.traceback
        rich.traceback.install(show_locals={locals_too})
        def fail(depth):
            if depth:
                fail(depth - 1)
            try:
                {{}}["key"]
            except KeyError as error:
                raise ValueError("second") from error
        try:
            fail(10)
        except ValueError as error:
            raise RuntimeError("third\\nand its second line") from error
        """,
        tmp_path,
        {"PYTHONIOENCODING": encoding, "COLUMNS": "100"},
    )

    shown = excerpt(tail)

    assert exception_line(tail) == "RuntimeError: third"
    assert shown[-2:] == ["RuntimeError: third", "and its second line"]
    assert " Traceback (most recent call last) " in shown[0]
    assert (
        exception_line("\n".join(beginning_of_traceback(tail.splitlines())))
        == "RuntimeError: third"
    )


def test_deep_traceback_in_tail_keeps_both_ends(tmp_path: Path) -> None:
    """The header, the first frames and the exception are kept."""
    tail = Tail()
    source = """
        def ping(n):
            return pong(n)
        def pong(n):
            return ping(n)
        class Noisy:
            def __del__(self):
                raise OSError("harmless")
        noisy = Noisy()
        ping(0)
    """
    for line in standard_error_of(source, tmp_path).splitlines(keepends=True):
        tail.add(line.encode())

    shown = excerpt(tail.text())

    expected = "RecursionError: maximum recursion depth exceeded"
    assert exception_line(tail.text()) == expected
    assert shown[0] == "Traceback (most recent call last):"
    assert shown[1].endswith("line 10, in <module>")
    [left_out] = [line for line in shown if line.endswith(" lines omitted ...")]
    assert int(left_out.split()[1]) > 1500
    assert expected in shown


def test_long_message_keeps_exception() -> None:
    """A model that does not fit its checkpoint names each of its parameters."""
    frames = '  File "train.py", line 3, in <module>\n    model.load_state_dict(state)\n'
    message = "".join(f"\tsize mismatch for layer.{number}\n" for number in range(500))
    tail = Tail()

    tail.add(f"Traceback (most recent call last):\n{frames}RuntimeError: Error(s)\n".encode())
    tail.add(message.encode())

    assert exception_line(tail.text()) == "RuntimeError: Error(s)"
    assert excerpt(tail.text())[-1] == "\tsize mismatch for layer.499"


HEAD = "Traceback (most recent call last):"
STEPS = [f"step {number}" for number in range(100)]
FRAMES = [f"  File {number}" for number in range(1000)]
LOGGED = [HEAD, "  File", "ValueError: retried"]
CHAINED = [
    *(HEAD, '  File "train.py", line 1, in <module>', "KeyError: 'a'", ""),
    *("During handling of the above exception, another exception occurred:", ""),
    *(HEAD, '  File "train.py", line 3, in <module>', "RuntimeError: boom"),
]


@pytest.mark.parametrize(
    ("tail", "exception", "shown"),
    [
        ([], "", []),
        (["", ""], "", []),
        # Without a traceback, a screen's worth of lines, of which only the last may be an error.
        (STEPS, "", STEPS[-20:]),
        (["SyntaxError: x", "bye"], "", ["SyntaxError: x", "bye"]),
        # The worker was killed while it printed.
        ([HEAD, "  File x"], "", [HEAD, "  File x"]),
        # A traceback before much output was logged, and is not the cause.
        (
            [*LOGGED, *STEPS],
            "",
            [*LOGGED, *STEPS[:7], "... 81 lines omitted ...", *STEPS[-12:]],
        ),
        # A deep traceback is cut in the middle.
        (
            [HEAD, *FRAMES, "ValueError: boom"],
            "ValueError: boom",
            [HEAD, *FRAMES[:9], "... 951 lines omitted ...", *FRAMES[-40:], "ValueError: boom"],
        ),
        # Torch's excepthook prefixes all but empty lines.
        ([line and f"[rank3]: {line}" for line in CHAINED], "RuntimeError: boom", CHAINED),
    ],
)
def test_excerpt_of_lines(tail: list[str], exception: str, shown: list[str]) -> None:
    text = "".join(f"{line}\n" for line in tail)

    assert (exception_line(text), excerpt(text)) == (exception, shown)


def test_plain_lines() -> None:
    """Colours, control characters and overwritten progress are gone."""
    text = "\x1b[31mred\x1b[0m\n 10%\r 90%\rdone\r\nbell\x07\x00\ttab\n\n"

    assert plain_lines(text) == ["red", "done", "bell\ttab"]


def test_long_line_is_cut() -> None:
    """One line of a megabyte must not scroll the cause away."""
    assert len(excerpt("x" * 1_000_000)[0]) < 500
