"""Tracebacks in what a worker printed."""

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
    """Python makes no integer of 5,000 digits."""
    shown = f"... {'9' * 5000} lines left out ..."

    assert beginning_of_traceback([*TRACEBACK, shown]) == [*TRACEBACK, shown]


def test_no_beginning_if_script_continued() -> None:
    """It caught the exception: the traceback does not explain its end."""
    later = [f"step {step}" for step in range(70)]

    assert beginning_of_traceback([*TRACEBACK, *later]) == []
    assert beginning_of_traceback(["step 2"]) == []
