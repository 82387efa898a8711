"""What is noted of the end of a script that runs in place, and how it ends if our own code fails."""

import errno
import sys

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
def test_the_exit_code_of_what_leaves_a_script(error: BaseException, code: int) -> None:
    """It is the one that Python exits with."""
    assert script_run.exit_code_of(error) == code


def test_only_the_worker_notes_its_end() -> None:
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


def test_further_workers_are_dated_by_their_exit() -> None:
    """The shared memory has no room for them."""
    end = FailureNotes().of(1000)

    end.set_owner()
    end.note(5)

    assert end.failure is None


def test_a_hook_is_put_back_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's own hook is set again, and its traceback begins with the script."""
    seen = []

    def own_hook(_kind: object, error: BaseException, traceback: object) -> None:
        seen.append((sys.excepthook is own_hook, error.__traceback__ is traceback is None))

    monkeypatch.setattr(sys, "excepthook", own_hook)
    run = script_run.ScriptRun(compile("1", "<test>", "exec"), {}, frames=1)
    error = ValueError()

    run.note_failure(error)
    sys.excepthook(ValueError, error, None)

    assert seen == [(True, True)]
    assert sys.excepthook is own_hook


def test_why_no_process_can_be_started() -> None:
    """A limit is named; other errors have the system's text."""
    assert kernel.describe_fork_error(OSError(errno.EAGAIN, "")).startswith("too many processes: ")
    assert kernel.describe_fork_error(OSError(errno.ENOMEM, "")).startswith(
        "not enough memory for another process"
    )
    assert kernel.describe_fork_error(OSError(errno.ENOSYS, "no such call")).endswith(
        "no such call"
    )
