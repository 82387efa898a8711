"""A timer with a descriptor, for loops that wait for descriptors."""

import os

_CLOCK_MONOTONIC = 1
_NANOSECONDS = 1_000_000_000
_NEVER = float("inf")


class Timer:
    """A timerfd(2): its descriptor is readable from the time that was set, until another is set."""

    def __init__(self) -> None:
        """Open a timer that never expires.

        Raises:
            OSError: there are too many open files.

        """
        # os.timerfd_create comes with Python 3.13.
        import ctypes

        self._libc = ctypes.CDLL(None, use_errno=True)
        self._times = ctypes.c_long * 4
        self._descriptor: int = self._libc.timerfd_create(
            _CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK
        )
        if self._descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._due = _NEVER

    def fileno(self) -> int:
        return self._descriptor

    def set(self, due: float, now: float) -> None:
        """Expire at ``due``; infinity: never. ``now`` is the present time by the same clock."""
        if due == self._due and due > now:
            return
        self._due = due
        # Zero would disarm it.
        wait = 0 if due == _NEVER else max(1, int((due - now) * _NANOSECONDS))
        times = self._times(0, 0, *divmod(wait, _NANOSECONDS))
        self._libc.timerfd_settime(self._descriptor, 0, times, None)

    def close(self) -> None:
        os.close(self._descriptor)
