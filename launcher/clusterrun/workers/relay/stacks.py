"""Collects the Python stacks that workers print on SIGQUIT, until all are complete or time is up."""

from collections.abc import Callable, Iterable, Mapping

from clusterrun.loop import NEVER
from clusterrun.workers.fork_server.messages import PrintedStacks
from clusterrun.workers.relay.streams import RelayedWorker, Stream

QUIET_SECONDS = 0.2
"""After the last line of a stack; until then another thread's stack may follow."""

NOT_HANDLED = "no handler for SIGQUIT: not a Python program, or not started yet"
NOTHING_PRINTED = "no Python stack within {:g} s: stopped, in native code, or not Python"
NOT_READ = "it prints to the terminal itself"


class StackCollector:
    """Collects the stacks of all workers and reports them to the agent, one round at a time."""

    def __init__(self, report: Callable[[PrintedStacks], None]) -> None:
        self._report = report
        self._numbers: list[int] = []
        """Numbers of the requests to be answered."""
        self._seconds = 0.0
        """Time that the workers of this round have for their first line."""
        self._shown = True
        self._until = self._due = 0.0
        self._streams: dict[int, Stream | None] = {}
        self._seen: dict[int, tuple[int, float]] = {}
        """Number of lines at the last check, and until when more may follow."""
        self._missing: dict[int, str] = {}
        """Why workers have no stack."""

    @property
    def due(self) -> float:
        """When to ``update`` even if nothing is printed; NEVER between rounds."""
        return self._due if self._numbers else NEVER

    def begin(
        self,
        number: int,
        workers: Mapping[int, RelayedWorker],
        now: float,
        seconds: float,
        *,
        shown: bool,
    ) -> None:
        """Begin a round, or join the present one, which answers all requests at its end.

        Args:
            number: the number of the request.
            workers: the running workers, by local rank.
            now: the time of the relay's clock.
            seconds: time for a worker's first line; it may be busy or stopped. If it is longer than that
                of the present round, the round starts again.
            shown: whether the stacks appear on the screen as they are printed.

        """
        if self._numbers and seconds <= self._seconds:
            self._numbers.append(number)
            return
        numbers = [*self._numbers, number]
        self._disarm()
        self._numbers, self._seconds, self._shown = numbers, seconds, shown
        self._until = now + seconds
        self._streams = {key: worker.streams.get("stderr") for key, worker in workers.items()}
        self._due, self._seen, self._missing = self._until, {}, {}
        for key, stream in self._streams.items():
            if stream is None:
                self._missing[key] = NOT_READ
            else:
                stream.dumps.arm()

    def skip(self, keys: Iterable[int]) -> None:
        """Don't wait for these workers, which were not signalled."""
        for key in keys:
            self._missing.setdefault(key, NOT_HANDLED)

    def update(self, now: float) -> None:
        """Report the stacks if all are complete or the time is over."""
        if not self._numbers:
            return
        complete = [self._is_complete(key, now) for key in self._streams]
        later = [quiet_at for _, quiet_at in self._seen.values() if quiet_at > now]
        self._due = min([self._until, *later])
        if not all(complete):
            return
        stacks = [(key, *self._stack(key)) for key in self._streams]
        for number in self._numbers:
            self._report(PrintedStacks(number, stacks, self._shown))
        self._disarm()

    def _is_complete(self, key: int, now: float) -> bool:
        stream = self._streams[key]
        if stream is None or key in self._missing:
            return True
        lines, quiet_at = self._seen.get(key, (0, self._until))
        if stream.dumps.lines != lines:
            lines, quiet_at = stream.dumps.lines, min(now + QUIET_SECONDS, self._until)
            self._seen[key] = lines, quiet_at
        return stream.ended or now >= quiet_at

    def _stack(self, key: int) -> tuple[str, bool]:
        stream = self._streams[key]
        if stream is not None and (stack := stream.dumps.stack):
            return stack, True
        return self._missing.get(key, NOTHING_PRINTED.format(self._seconds)), False

    def _disarm(self) -> None:
        for stream in self._streams.values():
            if stream is not None:
                stream.end_dumps()
        self._numbers, self._streams = [], {}
