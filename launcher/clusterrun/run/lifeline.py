"""The program that has called this agent: its signals, and the end of the job once it is gone."""

import signal
from collections.abc import Callable, Iterable

from clusterrun.loop import NEVER, Loop
from clusterrun.network.caller import CallerChannel, FromCaller, Signal
from clusterrun.network.handshake import BadFrame
from clusterrun.policy.events import Event
from clusterrun.signals import FORWARDED_SIGNALS, OUR_OWN, SignalReceived


class Lifeline:
    """The caller as a source of events, while nodes join and while the job runs.

    It is gone when its end of the channel closes, and when it has been silent: the job ends as by
    SIGTERM. Meanwhile this agent may be frozen, and a caller on another machine can't end it: so it
    runs on a lease of the fork server's, which a caller that is heard renews.

    Args:
        channel: the connection to the caller.
        silence: seconds without a sign of life after which it is gone; 0: only its end counts.

    """

    def __init__(self, channel: CallerChannel[FromCaller], silence: float) -> None:
        self._channel = channel
        self._silence = silence
        self._is_gone = False
        self._stop_watching: Callable[[], object] = lambda: None
        self._renew_lease: Callable[[float | None], object] = lambda _: None

    def run_in(self, loop: Loop[Event], renew_lease: Callable[[float | None], object]) -> None:
        """Have the events in a loop.

        Args:
            loop: the agent's.
            renew_lease: takes the seconds after which the fork server kills this process; None: never.

        """
        loop.watch(self._channel.fileno(), self.events)
        loop.time(self)
        self._stop_watching = lambda: loop.forget(self._channel.fileno())
        if self._silence:
            self._renew_lease = renew_lease
            self._renew_lease(2 * self._silence)
        # What came before the start of the job, or with it.
        loop.add(self.events(loop.clock()))

    @property
    def due(self) -> float:
        """When a caller that stays silent is gone."""
        if self._is_gone or not self._silence:
            return NEVER
        return self._channel.heard_at + self._silence

    def events(self, now: float) -> Iterable[Event]:
        """Return the caller's signals; what its end means, once."""
        if self._is_gone:
            return
        before = self._channel.heard_at
        try:
            messages = self._channel.receive()
        except BadFrame:
            # It has ended the channel.
            messages = []
        for message in messages:
            if isinstance(message, Signal) and message.number in {*OUR_OWN, *FORWARDED_SIGNALS}:
                yield SignalReceived(message.number, now)
        if self._channel.end is not None or now >= self.due:
            yield self._lost(now)
        elif self._channel.heard_at > before:
            self._renew_lease(2 * self._silence)

    def _lost(self, now: float) -> Event:
        self._is_gone = True
        # The end of a file stays readable: the loop would never wait again.
        self._stop_watching()
        # The grace period of the workers may be longer.
        self._renew_lease(None)
        return SignalReceived(signal.SIGTERM, now)
