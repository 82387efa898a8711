"""Forks two children that end badly, and checks their exit codes.

If a failing script ended with 0, it would count as a success. How Python ends a forked process
depends on its version and build, so each server tries its own.
"""

from __future__ import annotations

import _signal as signal
import os
import select

from ..kernel import die_with_parent
from ..script import CannotRunInPlace
from ..script_run import ScriptRun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..server import Server

TEXTS_AND_CODES = (("raise ValueError", 1), ("import sys; sys.exit(3)", 3))

SECONDS_TO_END = 20.0
SECONDS_TO_DIE = 2.0


def check_exit_codes(server: Server) -> ScriptRun | None:
    """Fork the children, and wait for them.

    Returns:
        In a child, what it runs; None in the server.

    Raises:
        CannotRunInPlace: a child has not ended as it should.
        OSError: no process can be forked.

    """
    all_ended, held_open = os.pipe()
    pids = []
    for text, _ in TEXTS_AND_CODES:
        pid = os.fork()
        if pid == 0:
            try:
                server.close_objects()
                os.close(all_ended)
                _become_silent_child_of(server.pid)
            except BaseException:  # the child must not go on as a server
                os._exit(127)
            return ScriptRun(compile(text, "<self-test>", "exec"), {"__name__": "__main__"}, 1)
        pids.append(pid)
    os.close(held_open)
    poll = select.poll()
    # The end of file comes when the last child has ended.
    poll.register(all_ended, select.POLLIN)
    in_time = poll.poll(SECONDS_TO_END * 1000)
    os.close(all_ended)
    wrong = []
    for pid, (text, code) in zip(pids, TEXTS_AND_CODES):
        if not in_time:
            os.kill(pid, signal.SIGKILL)
        status = server.reap_within(pid, SECONDS_TO_DIE)
        if status is None or not os.WIFEXITED(status) or os.WEXITSTATUS(status) != code:
            ended = f"ended with wait status {status}, not code {code}"
            how = ended if in_time else f"had not ended after {SECONDS_TO_END:g} s"
            wrong.append(f"a forked child that ran {text!r} {how}")
    if wrong:
        raise CannotRunInPlace(wrong[0], is_complaint=True)
    return None


def _become_silent_child_of(server: int) -> None:
    signal.set_wakeup_fd(-1)
    die_with_parent(server)
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(devnull, stream)
