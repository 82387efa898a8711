"""What people read while a job runs, to the letter."""

import signal

import pytest

from tests.agent.door import (
    node_notices,
    stack_requests,
)


@pytest.mark.parametrize(
    ("notice", "text"),
    [
        (
            node_notices.stopping(signal.SIGINT, 8, 25.0),
            (
                "interrupted: stopping 8 workers (grace 25 s, Ctrl-C again kills at once);"
                " exit code 130"
            ),
        ),
        (
            node_notices.stopping(signal.SIGTERM, 1, 0.5),
            "SIGTERM: stopping 1 worker (grace 0.5 s, SIGTERM again kills at once); exit code 143",
        ),
        (node_notices.interrupted(), "interrupted: exit code 130"),
        (node_notices.killing(1, 25.0), "1 worker did not exit within 25 s: sending SIGKILL"),
        (node_notices.OUTPUT_CLOSED, "standard output is closed: stopping all workers"),
        (
            stack_requests.stacks_follow(2),
            "SIGQUIT: the Python stacks of 2 workers follow; nothing is ended",
        ),
        (
            node_notices.not_handled(signal.SIGUSR1, [3, 0, 1]),
            "SIGUSR1 was not passed on to local rank 0-1, 3: it has no handler and would have been killed",
        ),
        (
            node_notices.not_handled(40, [0]),
            "signal 40 was not passed on to local rank 0: it has no handler and would have been killed",
        ),
        (
            node_notices.stopping_here("rank 3 on gpu-07 failed", 4),
            "rank 3 on gpu-07 failed: stopping 4 workers here",
        ),
        (node_notices.binding_differs(2, "not bound"), "local rank 2: not bound"),
    ],
)
def test_notice(notice: str, text: str) -> None:
    """Each is one line, and says what comes of it."""
    assert notice == text
