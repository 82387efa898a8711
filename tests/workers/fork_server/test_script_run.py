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


def test_only_the_owner_notes_failure() -> None:
    """A note does not count before ``set_owner``."""
    end = FailureNotes().of(3)

    end.note(5)
    before = end.failure
    end.set_owner()
    end.note(5)
    noted = end.failure
    end.clear()

    assert before is None
    assert noted is not None
    assert noted[0] > 0
    assert noted[1] == 5
    assert end.failure is None


def test_workers_beyond_the_shared_memory() -> None:
    """Their failures are not noted; the exit reports them."""
    end = FailureNotes().of(1000)

    end.set_owner()
    end.note(5)

    assert end.failure is None


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


def test_fork_errors() -> None:
    """A limit is named; other errors have the system's text."""
    assert kernel.describe_fork_error(OSError(errno.EAGAIN, "")).startswith("too many processes: ")
    assert kernel.describe_fork_error(OSError(errno.ENOMEM, "")).startswith(
        "not enough memory for another process"
    )
    assert kernel.describe_fork_error(OSError(errno.ENOSYS, "no such call")).endswith(
        "no such call"
    )
