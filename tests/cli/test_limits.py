"""Limits that ended us."""

import errno
import resource

import pytest
from clusterrun.cli.main import resource_limit_error
from clusterrun.errors import ExitCode, InternalError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "this process may have {} (ulimit -n)"),
        (OSError(errno.ENFILE, "Too many open files"), "(sysctl fs.file-max)"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "there is not enough memory"),
        (MemoryError(), "there is not enough memory"),
    ],
)
def test_resource_limit_errors(error: Exception, text: str) -> None:
    """Even if it caused another error."""
    last = InternalError("what came of it")
    last.__context__ = error
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)

    for found in (resource_limit_error(error), resource_limit_error(last)):
        assert found is not None
        assert found.exit_code == ExitCode.MACHINE
        assert text.format(soft) in found.message


def test_a_text_that_is_not_a_limit() -> None:
    """A bug of ours stays one."""
    assert resource_limit_error(OSError(errno.EBADF, "Bad file descriptor")) is None
    assert (
        resource_limit_error(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"))
        is None
    )
