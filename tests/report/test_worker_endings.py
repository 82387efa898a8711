"""Texts for the ends of workers."""

import signal

import pytest

from tests.report.door import (
    Ending,
    Exited,
    Killed,
    NotStarted,
    common_cause,
    in_words,
    signal_name,
)


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (Exited(7), "exit code 7"),
        (Killed(signal.SIGKILL), "SIGKILL"),
        (Killed(signal.SIGSEGV), "SIGSEGV (segmentation fault)"),
        (Killed(signal.SIGBUS), "SIGBUS (bus error)"),
        (Killed(signal.SIGRTMIN + 3), f"signal {signal.SIGRTMIN + 3}"),
        (NotStarted("exec", "No such file or directory"), "exec: No such file or directory"),
    ],
)
def test_every_ending_has_a_text(ending: Ending, words: str) -> None:
    assert in_words(ending) == words


@pytest.mark.parametrize(
    ("ending", "hint"),
    [
        (Killed(signal.SIGKILL), "memory"),
        (Killed(signal.SIGBUS), "/dev/shm"),
        (Killed(signal.SIGABRT), "NCCL"),
        (Killed(signal.SIGTERM), "clusterrun did not send it"),
        (Exited(137), "a shell exits with 137 if SIGKILL ended its program"),
        (Exited(127), "cannot find"),
        (Exited(126), "may not execute"),
    ],
)
def test_common_causes(ending: Ending, hint: str) -> None:
    """Users don't know that SIGBUS means a full /dev/shm."""
    assert hint in common_cause(ending)


@pytest.mark.parametrize(
    "ending", [Exited(0), Exited(1), Exited(128), Exited(255), Killed(50), NotStarted("", "")]
)
def test_no_cause_is_guessed_where_none_is_common(ending: Ending) -> None:
    """Only the script knows what another code means."""
    assert common_cause(ending) == ""


def test_every_signal_that_ends_a_process_has_a_name() -> None:
    """This holds for every number, whether Python has a name for it or not."""
    assert all(signal_name(number) for number in range(1, signal.NSIG))
