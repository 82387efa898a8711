"""The progress of a job with services: what is ready, what is waited for, and what still runs."""

from collections.abc import Mapping
from typing import Any

import pytest
from clusterrun.bounds import NodeRank
from clusterrun.job.job import MAIN, ProgramKind, WorkerProgram
from clusterrun.job.services import Service
from clusterrun.loop import NEVER
from clusterrun.planning.plan import ProgramOnNode, ProgramWorld
from clusterrun.policy.service_progress import ServiceProgress
from msgspec.structs import replace

BEGAN = 100.0

SERVICE = Service(
    name="server",
    where="job.yaml:2",
    program=WorkerProgram(ProgramKind.EXECUTABLE, "server", ()),
)

PLACES: Mapping[str, Mapping[int, int]] = {
    MAIN: {0: 2, 1: 2},
    "server": {1: 1, 2: 2},
    "engine": {0: 2, 2: 2},
    "eval": {2: 1},
}
"""Workers by node: their numbers are 0-3, 4-6, 7-10 and 11."""


def progress(**services: Mapping[str, Any]) -> ServiceProgress:
    """Return an attempt that begins with these services in ``PLACES``; the values are their keys."""
    programs, first = [], 0
    for name, placed in PLACES.items():
        nodes = (ProgramOnNode(NodeRank(rank), f"n{rank}", size) for rank, size in placed.items())
        programs.append(ProgramWorld(name, first, tuple(nodes)))
        first += sum(placed.values())
    known = [replace(SERVICE, name=name, **keys) for name, keys in services.items()]
    return ServiceProgress(
        known, [each for each in programs if each.name in {MAIN, *services}], BEGAN
    )


def two(**keys: object) -> ServiceProgress:
    """Return an attempt with two services that are asked; ``keys`` are of the second."""
    return progress(server={"ready": "/health"}, engine={"ready": "tcp", **keys}, eval={})


BOTH = ("server", "engine")


def test_restarting_worker_is_waited_for_until_all_have_started() -> None:
    """No program waits for it once all were ready at once."""
    found = two()
    assert found.became_ready([4, 5, 6]) == ("server",)

    found.starts_again(5)

    assert found.became_ready([7, 8, 9, 10]) == ("engine",)
    assert found.became_ready([5]) == BOTH
    found.starts_again(5)
    assert found.due == NEVER


@pytest.mark.parametrize(
    ("keys", "answers", "ready"),
    [
        # A service is ready when all its workers are.
        ({}, [(4,), (5,), (6,)], [(), (), ("server",)]),
        ({}, [(4, 5, 6)], [("server",)]),
        # In the order of the file, all that are: who starts needs no memory.
        ({}, [(7, 8, 9, 10), (6, 5, 4)], [("engine",), BOTH]),
        ({}, [(4, 5, 7, 8, 9, 10), (6,)], [("engine",), BOTH]),
        ({}, [(4, 5, 6, 7, 8, 9, 10)], [BOTH]),
        # The same answer twice is no news, nor is one of others.
        ({}, [(4, 5, 6), (4,), (5, 6)], [("server",), (), ()]),
        ({}, [(0, 1, 2, 3), (11,), ()], [(), (), ()]),
        # Of a world, rank 0 has the port.
        ({"world": True}, [(8, 9, 10), (7,)], [(), ("engine",)]),
    ],
)
def test_became_ready_returns_all_ready_services(
    keys: dict[str, object], answers: list[tuple[int, ...]], ready: list[tuple[str, ...]]
) -> None:
    """Each time when another one becomes ready."""
    attempt = two(**keys)

    assert [attempt.became_ready(numbers) for numbers in answers] == ready


@pytest.mark.parametrize(
    ("services", "ends", "done_by"),
    [
        # The main program ends on each of its nodes.
        ({"server": {}}, [(MAIN, 0), (MAIN, 1)], [False, True]),
        ({"server": {}}, [(MAIN, 1), (MAIN, 1), (MAIN, 0)], [False, False, True]),
        # The end of other services counts for nothing, nor does that of nodes without it.
        ({"server": {}}, [("server", 1), ("server", 2), (MAIN, 2)], [False] * 3),
        # A service that must finish does so on all its nodes, before the main program or after it.
        (
            {"engine": {"must_finish": True}},
            [("engine", 2), (MAIN, 0), ("engine", 0), (MAIN, 1)],
            [False, False, False, True],
        ),
        (
            {"server": {}, "eval": {"must_finish": True}},
            [(MAIN, 0), (MAIN, 1), ("eval", 2)],
            [False, False, True],
        ),
        # It is done once.
        ({"server": {}}, [(MAIN, 0), (MAIN, 1), (MAIN, 1)], [False, True, False]),
    ],
)
def test_work_is_done(
    services: dict[str, dict[str, Any]], ends: list[tuple[str, int]], done_by: list[bool]
) -> None:
    """Exactly one end completes it, and it stays so."""
    attempt = progress(**services)

    assert [attempt.ended(name, node) for name, node in ends] == done_by
    assert attempt.work_is_done == any(done_by)


def test_waiting_notice() -> None:
    """After 10 s, then every minute, by the services' names; none once all are ready."""
    attempt = two()

    assert attempt.due == BEGAN + 10
    assert attempt.waits(BEGAN + 10) == (
        "the job has been waiting 10 s for server ranks 0-2, engine ranks 0-3 to be ready"
    )
    assert attempt.due == BEGAN + 70
    attempt.became_ready((4, 6, 7, 8, 9, 10))
    assert attempt.due == BEGAN + 70
    assert attempt.waits(BEGAN + 71.2) == (
        "the job has been waiting 71 s for server rank 1 to be ready"
    )
    attempt.became_ready((5,))
    assert attempt.due == NEVER


def test_no_waiting_notice() -> None:
    """No service is probed, or only rank 0 of one is."""
    assert progress(server={}, eval={"must_finish": True}).due == NEVER
    attempt = progress(engine={"ready": "tcp", "world": True})
    assert "for engine rank 0 to be" in attempt.waits(BEGAN + 10)
    attempt.became_ready((7,))
    assert attempt.due == NEVER
