"""Signs of life on connections that have nothing else to say, and whose absence is borne how long.

The kernel tells at once of an agent that has ended. It tells nothing of one that is frozen, of a
host that lost its power, or of a cable that was cut: then it is silence that tells.
"""

from collections.abc import Iterable

from msgspec import Struct

SECONDS_BETWEEN = 1.0

NEVER = float("inf")

MOST_PER_SECOND = 500
"""Signs of life that node 0 has to answer; in larger jobs each node gives them more rarely."""

MOST_OF_A_TIMEOUT = 0.25
"""So much of the time that a node may be silent passes between two signs, in small jobs."""

FEWEST_IN_A_TIMEOUT = 3
"""In large jobs the timeout is longer than was asked for, rather than that one sign decides."""


class Rhythm(Struct, frozen=True):
    """How often a node says that it lives, and after how long a silence it counts as lost."""

    interval: float
    timeout: float

    @property
    def silence(self) -> str:
        """What is said of a node that was silent for too long."""
        return f"has been silent for {self.timeout:g} s"


def rhythm_of(nodes: int, timeout: float) -> Rhythm:
    """Return the rhythm of a job of ``nodes`` whose silence may last ``timeout`` seconds."""
    usual = min(SECONDS_BETWEEN, timeout * MOST_OF_A_TIMEOUT)
    interval = max(usual, nodes / MOST_PER_SECOND)
    return Rhythm(interval, max(timeout, FEWEST_IN_A_TIMEOUT * interval))


class Attention:
    """Time that passes only while we could listen.

    Whoever was stopped himself, or got no processor, can't blame others for a silence that he did
    not listen to: a scheduler may suspend all nodes of a job, and continue them hours later.
    """

    def __init__(self, rhythm: Rhythm, now: float) -> None:
        """Begin to listen, at least once in each interval."""
        self._longest_gap = 2 * rhythm.interval
        self._last = now
        self._listened = 0.0

    def at(self, now: float) -> float:
        """Return the seconds that we have listened until ``now``."""
        self._listened += min(now - self._last, self._longest_gap)
        self._last = now
        return self._listened

    def moment(self, listened: float) -> float:
        """Return when so many seconds will have been listened, if all goes well."""
        return self._last + listened - self._listened


class Heartbeat:
    """A member's side: says that it lives, and expects an answer."""

    def __init__(self, rhythm: Rhythm, now: float) -> None:
        """Begin with the other side just heard."""
        self.rhythm = rhythm
        self._attention = Attention(rhythm, now)
        self._silent_at = rhythm.timeout
        self._next_sign = now + rhythm.interval
        self._paused = False

    @property
    def due(self) -> float:
        """When there is a sign to give, or the other side is lost."""
        return min(self._next_sign, self._attention.moment(self._silent_at))

    def heard(self, now: float) -> None:
        """Take note that the other side said something."""
        if not self._paused:
            self._silent_at = self._attention.at(now) + self.rhythm.timeout

    def pause(self) -> None:
        """Say nothing, and expect nothing: the other side is about to be stopped.

        What nobody reads would fill its buffers, and the kernel take it for dead.
        """
        self._paused = True
        self._silent_at = self._next_sign = NEVER

    def resume(self, now: float) -> None:
        """Go on: the other side has just said that it does."""
        self._paused = False
        self._next_sign = now
        self.heard(now)

    def wants_sign(self, now: float) -> bool:
        """Tell, once, whether it is time to say that we live."""
        if now < self._next_sign:
            return False
        self._next_sign = now + self.rhythm.interval
        return True

    def is_lost(self, now: float) -> bool:
        """Tell whether the other side has been silent for too long."""
        return self._attention.at(now) >= self._silent_at


class Pulses:
    """The coordinator's side: which of many, by number, has been silent for too long."""

    def __init__(self, rhythm: Rhythm, now: float) -> None:
        """Begin with nobody to listen to."""
        self._rhythm = rhythm
        self._attention = Attention(rhythm, now)
        self._looked = now
        # Who was heard last stands last, so that only the first can be the first to be lost.
        self._silent_at: dict[int, float] = {}

    @property
    def due(self) -> float:
        """When ``lost`` is to be asked, even if nobody says anything."""
        if not self._silent_at:
            return float("inf")
        first = self._attention.moment(next(iter(self._silent_at.values())))
        return min(first, self._looked + self._rhythm.interval)

    def heard(self, number: int, now: float) -> None:
        """Take note that one of them said something, perhaps its first words."""
        self._silent_at.pop(number, None)
        self._silent_at[number] = self._attention.at(now) + self._rhythm.timeout

    def forget(self, number: int) -> None:
        """Don't listen to one any more."""
        self._silent_at.pop(number, None)

    def lost(self, now: float) -> Iterable[int]:
        """Return, and forget, those who have been silent for too long."""
        self._looked = now
        listened = self._attention.at(now)
        silent = []
        for number, silent_at in self._silent_at.items():
            if listened < silent_at:
                break
            silent.append(number)
        for number in silent:
            del self._silent_at[number]
        return silent
