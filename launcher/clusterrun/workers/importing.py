"""A preparation that goes on in the fork server, as its agent sees it: it may take long, and it may hang."""

from clusterrun.planning.preparation import Preparation
from clusterrun.workers.fork_server.kernel import work_done

SECONDS_BETWEEN_LOOKS = 1.0

SECONDS_TO_FIRST_NOTICE = 10.0
SECONDS_BETWEEN_NOTICES = 30.0


class Importing:
    """What a fork server was asked to prepare, until it answers."""

    def __init__(self, preparation: Preparation) -> None:
        """It has been asked, and may not serve yet."""
        self.preparation = preparation
        self.module = "what the script imports first"
        """What is being imported."""
        self._pid = 0
        self._began = self._looked = self._next_notice = 0.0
        self._quiet = 0.0
        """Seconds for which nothing has happened."""
        self._work = 0.0

    def begin(self, pid: int, now: float) -> None:
        """Watch process ``pid``, which serves by now."""
        self._pid, self._began, self._looked = pid, now, now
        self._next_notice = now + SECONDS_TO_FIRST_NOTICE

    def goes_on_with(self, module: str) -> None:
        """Take note that the next import has begun."""
        self.module, self._quiet = module, 0.0

    @property
    def due(self) -> float:
        """When to ``look``."""
        return self._looked + SECONDS_BETWEEN_LOOKS

    def look(self, now: float) -> str:
        """Look whether it has done anything since the last look; return how it hangs, or ""."""
        if not self._pid:
            self._looked = now
            return ""
        work, limit = work_done(self._pid), self.preparation.import_timeout
        # Of the time in which this process was stopped, little counts: the other one may have been.
        since = min(now - self._looked, 2 * SECONDS_BETWEEN_LOOKS)
        self._quiet = self._quiet + since if work == self._work else 0.0
        self._work, self._looked = work, now
        if self._quiet <= limit:
            return ""
        return f"importing {self.module} hangs: nothing has happened for {limit:g} s"

    def notice(self, now: float) -> str:
        """Return what the user is to know now and then while it goes on, or ""."""
        if not self._pid or now < self._next_notice:
            return ""
        self._next_notice = now + SECONDS_BETWEEN_NOTICES
        return (
            f"importing {self.module} before workers are forked, for {now - self._began:.0f} s now"
            " (--preload none leaves that to each worker)"
        )
