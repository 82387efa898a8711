"""Values that are made to fit before they travel."""

import pytest
from clusterrun.bounds import MAX_NAME_LENGTH, as_line, as_name, as_run_id, as_text


@pytest.mark.parametrize(
    ("text", "line", "lines"),
    [
        ("a\tb", "a\tb", "a\tb"),
        ("a\nb", "a?b", "a\nb"),
        ("\x1b[31mred\r", "?[31mred?", "?[31mred?"),
        ("\x7f\x9b2J", "??2J", "??2J"),
        ("\udcff", "?", "?"),
        ("\u202egnp.exe", "?gnp.exe", "?gnp.exe"),
        ("a\u200fb\u200ec\u061cd", "a?b?c?d", "a?b?c?d"),
        ("Müller 研究 🙂", "Müller 研究 🙂", "Müller 研究 🙂"),
    ],
)
def test_what_a_terminal_obeys_is_replaced(text: str, line: str, lines: str) -> None:
    """Everything else stays, in whatever script."""
    assert (as_line(text), as_text(text)) == (line, lines)


def test_a_name_is_cut() -> None:
    """At its end."""
    assert as_name("n" * 1000) == "n" * MAX_NAME_LENGTH


@pytest.mark.parametrize(
    ("text", "run_id"),
    [
        ("26.0", "26.0"),
        ("ƒ2Nf8x", "ƒ2Nf8x"),
        ("a/../b", "a_.._b"),
        ("..", "__"),
        ("12[3].server\x1b", "12[3].server_"),
    ],
)
def test_a_schedulers_job_id_can_name_a_folder(text: str, run_id: str) -> None:
    """And no other folder than one below that of all logs."""
    assert as_run_id(text) == run_id
