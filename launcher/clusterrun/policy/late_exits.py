"""A worker whose script has failed, and whose process still runs: a thread or an exit handler holds it. Pure.

The other ranks wait for such a worker in a collective, and the GPUs of all with them. It has the grace
period of ``--shutdown-timeout`` to exit, from when the exception left its script: it may be uploading
a report of its crash. Then it is killed, and is the cause of the end like any other worker that fails.
Where the job has one worker, none waits for it: a notice names it, and it is left alone. So is a worker
that is debugged.
"""

from msgspec import Struct

from clusterrun.loop import NEVER

SECONDS_TO_EXIT = 5.0
"""A worker that needs longer is looked at, and named. Python's end takes a second with torch."""

SECONDS_TO_PRINT = 1.0
"""At least, whatever the grace period: a traceback is printed after the failure is known."""

SECONDS_TO_SHOW_STACKS = 4.0
"""The relay gives workers 2 s."""


class LateExit(Struct):
    """One such worker; ``patience`` is how long it may take to exit, NEVER if it is left alone."""

    failed_at: float
    looked_at: float = NEVER
    """When its stack was asked for."""
    was_named: bool = False
    """Its stack has come, and the user knows of it."""
    stack: str = ""
    was_killed: bool = False
    """Its time is over."""

    def look_at(self, patience: float) -> float:
        """Return when to ask for its stack."""
        was_looked_at = self.looked_at != NEVER
        return NEVER if was_looked_at else self.failed_at + min(SECONDS_TO_EXIT, patience)

    def kill_at(self, patience: float) -> float:
        """Return when its time is over; not before its stack is known, or does not come."""
        if self.looked_at == NEVER:
            return NEVER
        stack_comes = self.failed_at if self.was_named else self.looked_at + SECONDS_TO_SHOW_STACKS
        return max(self.failed_at + patience, stack_comes)

    @property
    def hung(self) -> str:
        """The stack in which it hung until it was killed for that; "" if it was not, or has none."""
        return self.stack if self.was_killed else ""
