"""Decoding of TORCHELASTIC_ERROR_FILE: the formats of torch, and any other text."""

import json

import pytest
from clusterrun.report.excerpt import decode_error_file
from hypothesis import given
from hypothesis import strategies as st

TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1\nValueError: boom\n'


def test_error_file_of_record_is_traceback() -> None:
    """The traceback ends with the message, which is not repeated."""
    written = {
        "message": {
            "message": "ValueError: boom",
            "extraInfo": {"py_callstack": TRACEBACK, "timestamp": "1790000000"},
        }
    }

    assert decode_error_file(json.dumps(written)) == TRACEBACK.strip()


def test_message_missing_in_traceback_comes_first() -> None:
    """An error handler may write another message than the exception's."""
    written = {"message": {"message": "disk full", "extraInfo": {"py_callstack": TRACEBACK}}}

    assert decode_error_file(json.dumps(written)) == f"disk full\n{TRACEBACK.strip()}"


@pytest.mark.parametrize(
    "written",
    [
        {"message": "boom", "timestamp": 1790000000},
        {"message": {"message": "boom", "errorCode": 3}},
        {"message": {"message": "boom", "extraInfo": None}},
    ],
)
def test_plain_error_file_is_message(written: object) -> None:
    """Older torch, and what runs in other languages, write less."""
    assert decode_error_file(json.dumps(written)) == "boom"


@pytest.mark.parametrize(
    "text", ["", "boom", '{"message": {"mess', "[1, 2]", "7", '{"error": "x"}']
)
def test_unknown_error_file_is_unchanged(text: str) -> None:
    """Any hint is better than none; a worker that was killed left the file empty."""
    assert decode_error_file(f"\n{text}\n") == text


def test_deeply_nested_error_file() -> None:
    """The user is not shown the parser's recursion limit."""
    assert decode_error_file("[" * 100_000)


@given(
    st.text()
    | st.recursive(
        st.none() | st.text(),
        lambda inner: st.dictionaries(
            st.sampled_from(["message", "extraInfo", "py_callstack"]), inner
        ),
    ).map(json.dumps)
)
def test_any_error_file_is_text(text: str) -> None:
    assert isinstance(decode_error_file(text), str)
