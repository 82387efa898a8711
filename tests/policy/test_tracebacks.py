"""Tracebacks in a worker's standard error."""

from clusterrun.policy.tracebacks import beginning_of_traceback

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    step()",
    "ValueError: no",
]


def test_beginning_of_traceback() -> None:
    assert beginning_of_traceback(["loading", *TRACEBACK]) == TRACEBACK


def test_large_number_of_omitted_lines() -> None:
    """Python refuses to convert 5,000 digits to an int."""
    shown = f"... {'9' * 5000} lines omitted ..."

    assert beginning_of_traceback([*TRACEBACK, shown]) == [*TRACEBACK, shown]


def test_no_beginning_if_script_continued() -> None:
    """The traceback does not explain the end of the script if more than 60 lines follow its frames."""
    later = [f"step {step}" for step in range(60)]

    assert beginning_of_traceback([*TRACEBACK, *later]) == []
    assert beginning_of_traceback([*TRACEBACK, *later[1:]])[:4] == TRACEBACK
    assert beginning_of_traceback(["step 2"]) == []
