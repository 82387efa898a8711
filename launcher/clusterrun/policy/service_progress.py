"""The progress of a job with services in one attempt: which services are ready, which programs run. Pure."""

from collections.abc import Iterable, Sequence

from clusterrun.job.job import MAIN
from clusterrun.job.services import Service
from clusterrun.loop import NEVER
from clusterrun.planning.plan import ProgramWorld

SECONDS_TO_FIRST_NOTICE = 10.0
SECONDS_BETWEEN_NOTICES = 60.0


class ServiceProgress:
    """Tracks services as they become ready, and programs as they end."""

    def __init__(
        self, services: Sequence[Service], programs: Iterable[ProgramWorld], at: float
    ) -> None:
        """Begin an attempt at ``at``, in seconds of the coordinator's clock."""
        self._services = {each.name: each for each in services}
        self._programs = {each.name: each for each in programs}
        self._began = at
        self._next_notice = at + SECONDS_TO_FIRST_NOTICE
        self._unready = {
            name: set(probed_workers(self._programs[name], service))
            for name, service in self._services.items()
            if service.ready
        }
        """The numbers of workers that are not ready yet, by service."""
        self._all_have_started = False
        """All were ready at once, so no program waits any more."""
        self._running = {
            (name, node.node_rank)
            for name, program in self._programs.items()
            if name == MAIN or self._services[name].must_finish
            for node in program.nodes
        }
        """Programs and node ranks where the job still waits for the program to end."""

    @property
    def work_is_done(self) -> bool:
        """Whether the main program, and each service that must finish, has exited with 0 on all nodes."""
        return not self._running

    @property
    def some_ranks_have_ended(self) -> bool:
        """Whether the main program has exited with 0 on a node."""
        nodes = self._programs[MAIN].nodes
        return any((MAIN, each.node_rank) not in self._running for each in nodes)

    @property
    def due(self) -> float:
        """When to print what the job waits for."""
        return self._next_notice if any(self._unready.values()) else NEVER

    def became_ready(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """Record that these workers are ready; return all ready services if a service has become ready."""
        known = set(numbers)
        before = self._ready
        for missing in self._unready.values():
            missing.difference_update(known)
        self._all_have_started = self._all_have_started or not any(self._unready.values())
        return () if self._ready == before else self._ready

    def starts_again(self, number: int) -> None:
        """Record that a ready worker restarts: programs that have not started wait for it again."""
        if self._all_have_started:
            return
        for name, missing in self._unready.items():
            if number in probed_workers(self._programs[name], self._services[name]):
                missing.add(number)

    @property
    def _ready(self) -> tuple[str, ...]:
        return tuple(name for name, missing in self._unready.items() if not missing)

    def ended(self, name: str, node_rank: int) -> bool:
        """Record that a program has exited with 0 on a node; return whether that completes the work."""
        was_done = self.work_is_done
        self._running.discard((name, node_rank))
        return self.work_is_done and not was_done

    def waits(self, at: float) -> str:
        """Return "the job waits for server ranks 1, 3 to be ready, for 90 s now"."""
        self._next_notice = at + SECONDS_BETWEEN_NOTICES
        missing = ", ".join(
            self._programs[name].numbered.named(numbers)
            for name, numbers in self._unready.items()
            if numbers
        )
        return f"the job has been waiting {at - self._began:.0f} s for {missing} to be ready"


def probed_workers(program: ProgramWorld, service: Service) -> range:
    """Return the numbers of the workers that are probed: only rank 0 of a service that forms a world."""
    return range(program.first, program.first + (1 if service.world else program.size))
