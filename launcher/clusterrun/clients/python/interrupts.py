"""Ctrl-C between two steps of a call, and not in the middle of one."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self


class DeferredInterrupts:
    """A block in which SIGINT's handler runs where ``deliver`` is called, and at the end.

    Python raises KeyboardInterrupt after any instruction: what a socket has just taken, or given, would
    be sent twice, or be lost. Of several, only the first is held: a handler that must run at once, say
    because the terminal takes no more output, does so by a second Ctrl-C.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        """``wake`` has what waits in the block return."""
        self._wake = wake
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self._is_pending = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._hold)
        return self

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending and self._handler is not None:
            self._handler(number, frame)
        self._is_pending = True
        self._wake()

    def deliver(self) -> None:
        """Run the handler, if SIGINT has come.

        Raises:
            KeyboardInterrupt: by the handler.

        """
        if self._is_pending and self._handler is not None:
            self._is_pending = False
            self._handler(signal.SIGINT, None)

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self.deliver()
