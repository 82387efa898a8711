"""Trying a plan's binding before anything is started."""

import os

from msgspec.structs import replace

from launcher.domain.cpuset import CpuSet
from launcher.domain.job import NumaMemory
from launcher.domain.plan import MemoryPolicy
from launcher.workers.trial import troubles_of
from tests.workers.fork_server_bench import plan_of, worker_of


def test_what_works_and_what_does_not() -> None:
    """A line for each worker that can't be bound; we ourselves stay where we are."""
    before = os.sched_getaffinity(0)
    last = max(before)
    plan = replace(
        plan_of(["true"]),
        workers=(
            worker_of(0, cpus=CpuSet({last})),
            worker_of(1, cpus=CpuSet({last, 1000})),
            worker_of(2, memory=MemoryPolicy(NumaMemory.BIND, (1000,))),
            worker_of(3, cpus=CpuSet(before)),
        ),
    )

    first, second = troubles_of(plan)

    assert first == f"local rank 1: asked for CPUs {CpuSet({last, 1000})}, got {last}"
    assert second.startswith("local rank 2: no memory policy, bind 1000: ")
    assert os.sched_getaffinity(0) == before


def test_nothing_to_complain_of() -> None:
    """Workers that are not bound are no trouble here."""
    assert troubles_of(replace(plan_of(["true"]), workers=(worker_of(0),))) == []
