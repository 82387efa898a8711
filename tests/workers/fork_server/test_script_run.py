"""Failure notes and exit codes of scripts that run in place, and errors of fork(2)."""

import errno
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from clusterrun.workers.fork_server import kernel, script_run
from clusterrun.workers.fork_server.failure_notes import FailureNotes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError(), 1),
        (SystemExit(), 0),
        (SystemExit(None), 0),
        (SystemExit(7), 7),
        (SystemExit(-1), 255),
        (SystemExit(300), 44),
        (SystemExit("a text"), 1),
        (KeyboardInterrupt(), 1),
    ],
)
def test_exit_code_of_exception(error: BaseException, code: int) -> None:
    """It is the one that Python exits with."""
    assert script_run.exit_code_of(error) == code


@pytest.mark.parametrize(("worker", "noted"), [(3, [5]), (1000, [])], ids=["noted", "no room"])
def test_only_the_owner_notes_failure(worker: int, noted: list[int]) -> None:
    """After ``set_owner``; there is shared memory for some workers, and the exit reports the others."""
    end = FailureNotes().of(worker)

    end.note(5)
    before = end.failure
    end.set_owner()
    end.note(5)
    found = end.failure
    end.clear()

    assert (before, end.failure) == (None, None)
    assert [code for at, code in [found or (0, 0)] if at > 0] == noted


def test_excepthook_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is called, with a traceback that begins with the script."""
    seen = []

    def own_hook(_kind: object, error: BaseException, traceback: object) -> None:
        seen.append((sys.excepthook is own_hook, error.__traceback__ is traceback is None))

    monkeypatch.setattr(sys, "excepthook", own_hook)
    script: Any = SimpleNamespace(code=compile("1", "<test>", "exec"), is_module=False)
    run = script_run.ScriptRun(script, {}, FailureNotes().of(0), [])
    error = ValueError()

    run.note_failure(error)
    sys.excepthook(ValueError, error, None)

    assert seen == [(True, True)]
    assert sys.excepthook is own_hook


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EAGAIN, "too many processes: "),
        (errno.ENOMEM, "not enough memory for another process"),
        (errno.ENOSYS, "no such call"),
    ],
)
def test_fork_errors(number: int, text: str) -> None:
    """A limit is named; other errors have the system's text."""
    assert text in kernel.describe_fork_error(OSError(number, "no such call"))
