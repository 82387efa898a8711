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


@pytest.mark.parametrize(("script", "expected"), SCRIPTS)
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


def test_logged_line_is_not_a_syntax_error() -> None:
    """Only the last line counts if there is no traceback."""
    assert exception_line("SyntaxError: in the log\nbye\n") == ""


def test_rank_prefixes_of_torch_are_removed() -> None:
    """Torch's excepthook prefixes all but empty lines."""
    tail = dedent("""\
        [rank3]: Traceback (most recent call last):
        [rank3]:   File "train.py", line 1, in <module>
        [rank3]: KeyError: 'a'

        [rank3]: During handling of the above exception, another exception occurred:

        [rank3]: Traceback (most recent call last):
        [rank3]:   File "train.py", line 3, in <module>
        [rank3]: RuntimeError: boom
    """)

    assert len(excerpt(tail)) == 9
    assert exception_line(tail) == "RuntimeError: boom"


def test_excerpt_without_traceback_is_last_lines() -> None:
    """Twenty lines are a screen's worth."""
    tail = "".join(f"step {step}\n" for step in range(100))

    assert excerpt(tail) == [f"step {step}" for step in range(80, 100)]
    assert exception_line(tail) == ""


def test_traceback_before_much_output_is_not_the_cause() -> None:
    """The traceback was logged. It and the last lines are shown."""
    tail = "Traceback (most recent call last):\n  File\nValueError: retried\n" + "step\n" * 100

    assert exception_line(tail) == ""
    assert excerpt(tail)[2] == "ValueError: retried"
    assert "... 81 lines omitted ..." in excerpt(tail)
    assert excerpt(tail)[-1] == "step"


def test_excerpt_cuts_deep_traceback_in_the_middle() -> None:
    frames = "".join(f"  File {number}\n" for number in range(1000))
    shown = excerpt(f"Traceback (most recent call last):\n{frames}ValueError: boom\n")

    assert len(shown) == 52
    assert shown[1] == "  File 0"
    assert shown[-2:] == ["  File 999", "ValueError: boom"]


def test_incomplete_traceback_has_no_exception() -> None:
    """The worker was killed while it printed."""
    tail = "Traceback (most recent call last):\n  File x\n"

    assert excerpt(tail) == ["Traceback (most recent call last):", "  File x"]
    assert exception_line(tail) == ""


def test_plain_lines() -> None:
    """Colours, control characters and overwritten progress are gone."""
    text = "\x1b[31mred\x1b[0m\n 10%\r 90%\rdone\r\nbell\x07\x00\ttab\n\n"

    assert plain_lines(text) == ["red", "done", "bell\ttab"]


def test_long_line_is_cut() -> None:
    """One line of a megabyte must not scroll the cause away."""
    assert len(excerpt("x" * 1_000_000)[0]) < 500


def test_excerpt_of_no_output() -> None:
    assert excerpt("") == []
    assert excerpt("\n\n") == []
