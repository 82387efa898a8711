"""Excerpts of standard error, most of it printed by real interpreters."""

import os
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


def test_excerpt_is_last_traceback(tmp_path: Path) -> None:
    tail = standard_error_of(
        """
        import sys
        for step in range(100):
            print("step", step, file=sys.stderr)
        raise ValueError("boom")
        """,
        tmp_path,
    )

    assert excerpt(tail)[0] == "Traceback (most recent call last):"
    assert excerpt(tail)[-1] == exception_line(tail) == "ValueError: boom"


@pytest.mark.parametrize("chain", ["from error", ""])
def test_excerpt_keeps_chained_tracebacks(chain: str, tmp_path: Path) -> None:
    """The first of a chain often names the true cause."""
    tail = standard_error_of(
        f"""
        import sys
        sys.stderr.write("Traceback (most recent call last):\\n  logged, in <module>\\nOldError: long ago\\n")
        def fail():
            try:
                {{}}["key"]
            except KeyError as error:
                raise ValueError("second") {chain}
        try:
            fail()
        except ValueError as error:
            raise RuntimeError("third") {chain}
        """,
        tmp_path,
    )

    shown = excerpt(tail)

    assert exception_line(tail) == "RuntimeError: third"
    assert shown.count("Traceback (most recent call last):") == 3
    assert "KeyError: 'key'" in shown
    assert "OldError: long ago" not in shown


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


def test_exception_group_is_one_traceback(tmp_path: Path) -> None:
    """The tracebacks inside a group belong to it."""
    tail = standard_error_of(
        """
        def fail():
            raise ValueError("inner")
        try:
            fail()
        except ValueError as error:
            raise ExceptionGroup("both", [error])
        """,
        tmp_path,
    )

    assert exception_line(tail) == "ExceptionGroup: both (1 sub-exception)"
    assert "    | ValueError: inner" in excerpt(tail)


def test_ignored_exception_after_traceback(tmp_path: Path) -> None:
    """What ``__del__`` raises at the interpreter's end comes last, and is harmless."""
    tail = standard_error_of(
        """
        class Noisy:
            def __del__(self):
                raise OSError("harmless")
        noisy = Noisy()
        raise ValueError("boom")
        """,
        tmp_path,
    )

    assert "OSError: harmless" in tail
    assert exception_line(tail) == "ValueError: boom"


def test_ignored_exception_alone(tmp_path: Path) -> None:
    """The script itself has chosen its exit code."""
    tail = standard_error_of(
        """
        import sys
        class Noisy:
            def __del__(self):
                raise OSError("harmless")
        noisy = Noisy()
        sys.exit(3)
        """,
        tmp_path,
    )

    assert "OSError: harmless" in tail
    assert exception_line(tail) == ""


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


def test_exception_in_finalizer_after_traceback(tmp_path: Path) -> None:
    """Weak references print a traceback of their own at exit."""
    tail = standard_error_of(
        """
        import atexit, weakref
        class Library:
            pass
        def fail(number):
            raise OSError(f"harmless {number}")
        library = Library()
        weakref.finalize(library, fail, 1)
        atexit.register(fail, 2)
        raise ValueError("boom")
        """,
        tmp_path,
    )

    assert tail.count("OSError: harmless") == 2
    assert exception_line(tail) == "ValueError: boom"
    assert "OSError: harmless 1" in excerpt(tail)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\ndef (\n", "SyntaxError: invalid syntax (train.py, line 2)"),
        ("x = 1\n  y = 2\n", "IndentationError: unexpected indent (train.py, line 2)"),
        ("import broken\n", "SyntaxError: invalid syntax (broken.py, line 3)"),
        ("raise SyntaxError('my own')\n", "SyntaxError: my own"),
        ("print('SyntaxError: no')\nraise ValueError('boom')\n", "ValueError: boom"),
    ],
)
def test_syntax_error_has_file_and_line(source: str, line: str, tmp_path: Path) -> None:
    """The script itself has no traceback yet; a module that it imports has."""
    (tmp_path / "broken.py").write_text("def f():\n    x = 1\n    y = 1 2\n")

    assert exception_line(standard_error_of(source, tmp_path)) == line


def test_logged_line_is_not_a_syntax_error() -> None:
    """Only the last line counts if there is no traceback."""
    assert exception_line("SyntaxError: in the log\nbye\n") == ""


def test_excerpt_keeps_stack_of_faulthandler(tmp_path: Path) -> None:
    """Faulthandler prints the Python stack of a segmentation fault."""
    tail = standard_error_of(
        """
        import faulthandler, sys
        for step in range(100):
            print("step", step, file=sys.stderr)
        faulthandler.enable()
        faulthandler._sigsegv()
        """,
        tmp_path,
    )

    assert excerpt(tail)[0] == "Fatal Python error: Segmentation fault"
    assert exception_line(tail) == ""


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
