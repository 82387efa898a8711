"""Delay Ctrl-C until a safe point."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self


class DeferredInterrupts:
    """A block in which SIGINT's handler only runs in ``deliver``, and at the end of the block.

    Otherwise Python may raise KeyboardInterrupt after any instruction, and data that a socket has just
    sent or received would be sent twice or lost. Only the first SIGINT is deferred, so a second Ctrl-C
    still works while the block is stuck.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        """Use ``wake`` to make waiting code in the block return."""
        self._wake = wake
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self._is_pending = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._defer)
        return self

    def _defer(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending and self._handler is not None:
            self._handler(number, frame)
        self._is_pending = True
        self._wake()

    def deliver(self) -> None:
        """Run the handler if SIGINT was received.

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
