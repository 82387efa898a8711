"""Tracebacks in what a worker printed."""

from clusterrun.policy.tracebacks import beginning_of_traceback

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    step()",
    "ValueError: no",
]


def test_a_traceback_that_the_report_may_need() -> None:
    assert beginning_of_traceback(["loading", *TRACEBACK]) == TRACEBACK


def test_no_number_of_lines_is_too_long() -> None:
    """Python makes no integer of 5,000 digits."""
    shown = f"... {'9' * 5000} lines left out ..."

    assert beginning_of_traceback([*TRACEBACK, shown]) == [*TRACEBACK, shown]


def test_a_script_that_went_on_after_a_traceback() -> None:
    """It caught the exception: the traceback does not explain its end."""
    later = [f"step {step}" for step in range(70)]

    assert beginning_of_traceback([*TRACEBACK, *later]) == []
    assert beginning_of_traceback(["step 2"]) == []
