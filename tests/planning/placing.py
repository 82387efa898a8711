"""Workers that are placed by the options of a job."""

from typing import NamedTuple

from clusterrun.job.options import NumaBinding, NumaMemory
from clusterrun.machine.machine import Machine
from clusterrun.planning.binding import place as place_workers
from clusterrun.planning.placement import BindingRequest, Placement


class BindingOptions(NamedTuple):
    """The options of a job for binding."""

    mode: NumaBinding
    memory: NumaMemory = NumaMemory.NONE
    gpus_per_worker: int | None = None


def place(options: BindingOptions, here: Machine, workers: int) -> tuple[Placement, ...]:
    return place_workers(here, BindingRequest(workers, *options))
