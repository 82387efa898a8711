"""Which workers of a node have which GPUs."""

from typing import Any

import pytest
from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.job.job import ProgramKind, TaskLayout, WorkerProgram
from clusterrun.job.services import Service
from clusterrun.machine.machine import Machine
from clusterrun.planning.worker_slots import worker_slots
from msgspec.structs import replace

from tests.plans import job, machine

NODES = {0: "0-3", 1: "4-7"}
FOUR = machine(NODES, [0, 0, 1, 1])
SEES_THE_THIRD = machine(NODES, [0, 0, 1, 1], visible=[2])
WITHOUT_A_BUS = replace(SEES_THE_THIRD, pci_gpus=FOUR.pci_gpus[2:3])
NO_GPUS = machine(NODES)
SERVE = WorkerProgram(ProgramKind.EXECUTABLE, "serve", ())
SERVER = Service(name="server", where="rl.yaml:4", program=SERVE)


def task(rank: int, size: int, **values: Any) -> dict[str, Any]:
    local = {"local_rank": LocalRank(rank), "local_size": size, "node_rank": NodeRank(0)}
    layout = TaskLayout(
        **{"rank": GlobalRank(rank), "size": size, "nodes": 1, "own_cpus": False, **local, **values}
    )
    return {"tasks": layout, "nproc_per_node": 1}


def slot_texts(here: Machine, values: dict[str, Any]) -> list[str]:
    """Return each slot as "main 0,1": ``?`` for unknown GPUs, by bus order for others'."""
    at = {gpu.bdf: str(number) for number, gpu in enumerate(FOUR.pci_gpus)}
    return [
        " ".join(
            [
                slot.program or "others",
                "?" if slot.gpus is None else ",".join(at[gpu.bdf] for gpu in slot.gpus) or "-",
                *([] if slot.is_ours or slot.program is None else ["elsewhere"]),
            ]
        )
        for slot in worker_slots(job(**values), here)
    ]


@pytest.mark.parametrize(
    ("here", "values", "expected"),
    [
        (FOUR, {"gpus_per_worker": 2}, ["main 0,1", "main 2,3"]),
        (FOUR, {"nproc_per_node": 1}, ["main 0"]),
        (NO_GPUS, {"nproc_per_node": 2}, ["main -", "main -"]),
        (FOUR, {"nproc_per_node": 5, "gpus_per_worker": 0}, ["main ?"] * 5),
        # The GPUs that it does not see are another job's.
        (SEES_THE_THIRD, {}, ["main 2", "others 0", "others 1", "others 3"]),
        (
            FOUR,
            {"services": (replace(SERVER, gpus_per_worker=2), replace(SERVER, name="judge"))},
            ["main 0", "main 1", "server 2,3", "judge -"],
        ),
        # A scheduler's tasks that see all GPUs of the node.
        (FOUR, task(1, 2), ["main 0 elsewhere", "main 1"]),
        (FOUR, task(1, 2, own_cpus=True), ["main 1"]),
        (
            FOUR,
            {**task(1, 5), "gpus_per_worker": 0},
            ["main ? elsewhere", "main ?", *["main ? elsewhere"] * 3],
        ),
        # One that sees its own.
        (SEES_THE_THIRD, task(1, 4), ["main 2", *(f"main {at} elsewhere" for at in (0, 1, 3))]),
        (SEES_THE_THIRD, task(1, 2), ["main 2", "others 0", "others 1", "others 3"]),
        (WITHOUT_A_BUS, task(1, 4, gpus=4), ["main 2", "others ?", "others ?", "others ?"]),
        (NO_GPUS, task(1, 2), ["main -"]),
    ],
)
def test_worker_slots(here: Machine, values: dict[str, Any], expected: list[str]) -> None:
    """Workers of this agent are in the order of their local ranks, before those of others."""
    assert slot_texts(here, values) == expected
