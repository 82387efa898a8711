"""The process that workers are forked from: a subreaper that no signal ends."""

from __future__ import annotations

import _signal as signal
import os
import select
import time

from .other_processes import children_of, send_signal
from .this_process import PR_SET_CHILD_SUBREAPER, prctl
from .worker_signals import REPORTED, SHIELDED, shield

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .agent_socket import AgentSocket


class ForkingProcess:
    """Waits for messages and for children; orphans of the workers become its children."""

    def __init__(self, agent: AgentSocket) -> None:
        """Shield the current process from signals, and take its part."""
        self.agent = agent
        self.ignored = {n for n in SHIELDED if signal.getsignal(n) == signal.SIG_IGN}
        """The signals that the launcher was started with as ignored."""
        self._signals: list[tuple[int, float]] = []
        self._pipe: tuple[int, ...] = ()
        shield()
        self.take_over()
        # The agent blocked all signals before it executed this program.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def take_over(self) -> None:
        """Make the current process the one that workers are forked from."""
        self.pid = os.getpid()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        for end in self._pipe:
            os.close(end)
        self._pipe = self._wakeup, signal_arrived = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(signal_arrived, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in REPORTED:
            if number not in self.ignored:
                signal.signal(number, self._note_signal)
        self.poll = select.poll()
        self.poll.register(self._wakeup, select.POLLIN)
        self.poll.register(self.agent, select.POLLIN)

    def wait(self, milliseconds: float | None) -> list[int]:
        """Wait for a signal or a descriptor of ``poll``; return the descriptors that are ready."""
        ready = [descriptor for descriptor, _event in self.poll.poll(milliseconds)]
        self._empty_wakeup_pipe()
        return [descriptor for descriptor in ready if descriptor != self._wakeup]

    def wait_for_child(self, seconds: float) -> None:
        """Wait until a child may have ended, or ``seconds`` are over."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        poll.poll(seconds * 1000)
        self._empty_wakeup_pipe()

    def reap_within(self, pid: int, seconds: float) -> int | None:
        """Reap a child that is about to end; return its ``wait`` status, None if it has not ended."""
        deadline = time.monotonic() + seconds
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            left = deadline - time.monotonic()
            if ended or left <= 0:
                return status if ended else None
            self.wait_for_child(left)

    def kill_children(self) -> None:
        """SIGKILL every child, orphans of the workers included.

        Only children are signalled: until they are reaped, their pids can't belong to other
        processes. Their own children become ours when they die; the next call kills those.
        """
        for pid in children_of(self.pid):
            send_signal(pid, signal.SIGKILL)

    def report_signals(self) -> None:
        """Report signals to this process: a worker may have sent them to its parent."""
        while self._signals:
            number, at = self._signals.pop(0)
            self.agent.send("signalled", number=number, at=at)

    def _note_signal(self, number: int, _frame: object) -> None:
        self._signals.append((number, time.monotonic()))

    def _empty_wakeup_pipe(self) -> None:
        try:
            while os.read(self._wakeup, 4096):
                pass
        except BlockingIOError:
            pass
