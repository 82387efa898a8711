"""The world of a job on one machine: nobody to wait for, and a port of its own in every attempt."""

from collections.abc import Sequence

from msgspec.structs import replace

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec
from clusterrun.domain.outcome import (
    ExternalCause,
    Fate,
    Reason,
)
from clusterrun.domain.stacks import StackGroup
from clusterrun.domain.world import World
from clusterrun.rendezvous.assumed import assumed_world
from clusterrun.rendezvous.ports.held_port import HeldPort, hold_free_port, hold_port


class SingleNode:
    """Makes the ``World`` of each attempt of a job on one machine."""

    def __init__(self, job: JobSpec, workers: int) -> None:
        """Take the job, and how many workers this machine gets."""
        self._job = job
        self.workers = workers
        self._port: HeldPort | None = None

    @property
    def run_id(self) -> str:
        """What this job is called."""
        return self._job.run_id.value

    def world(self, attempt: int) -> World:
        """Return the world of the n-th attempt: a given port is kept, a chosen one is fresh.

        Raises:
            RendezvousError: the given port is in use.

        """
        given = self._job.master_port
        if given.value is None:
            # While the last one is still held, which is how this is another.
            port = hold_free_port()
            self.leave()
        else:
            self.leave()
            port = hold_port(Fact(given.value, given.origin))
        self._port = port
        return replace(
            assumed_world(self._job, self.workers),
            attempt=attempt,
            master_port=port.number,
        )

    @property
    def sources(self) -> tuple[()]:
        """Nobody has any news."""
        return ()

    def tell_failing(self, fate: Fate, age: float) -> None:
        """Do nothing: there is nobody to tell."""

    def tell_external_cause(self, external_cause: ExternalCause) -> None:
        """Do nothing: there is nobody to tell."""

    def tell_done(self, fates: Sequence[Fate], now: float, external_cause: Reason | None) -> None:
        """Do nothing: there is nobody to tell."""

    def ask_for_stacks(self) -> None:
        """Do nothing: there is nobody to ask."""

    def tell_stacks(self, number: int, groups: Sequence[StackGroup]) -> None:
        """Do nothing: there is nobody to tell."""

    def tell_still(self, seconds: float) -> None:
        """Do nothing: there is nobody to tell."""

    def tell_suspended(self, *, suspended: bool) -> None:
        """Do nothing: there is nobody to tell."""

    def leave(self) -> None:
        """Let go of the port."""
        if self._port is not None:
            self._port.release()
            self._port = None
