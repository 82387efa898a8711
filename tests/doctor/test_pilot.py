"""The report of the pilot."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from clusterrun.clients.doctor import pilot
from clusterrun.machine.inspect import inspect
from msgspec.structs import replace

from tests.imports import imports, output_of
from tests.real_machines import CAPTURES, tree_at

UUID = "GPU-5d0f83a2-417b-c6e9-20d4-91be37f60a58"

RANK = {"local_rank": 0, "cpus": [2, 3], "uuid": "abc"}
PLAN = {"local_rank": 0, "cpus": "2-3", "gpus": [{"uuid": "GPU-abc"}]}


def test_names_and_addresses_are_removed() -> None:
    """Names within other words are kept."""
    names = {"n0", "n0.site.org", "ada", "/home/ada"}
    text = "rank 1 on n0.site.org (10.0.0.7): /home/ada/x.py of ada: n01 adagrad"

    found = pilot.anonymized(text, names)

    assert found == "rank 1 on ... (ADDRESS): .../x.py of ...: n01 adagrad"


@pytest.mark.parametrize(
    ("plan", "levels"),
    [
        ([], ["not tried"]),
        ([PLAN], ["ok", "ok"]),
        ([{**PLAN, "cpus": "0-1"}], ["FAILED", "ok"]),
        ([{**PLAN, "gpus": [{"uuid": "GPU-other"}]}], ["ok", "FAILED"]),
        ([{**PLAN, "gpus": []}], ["ok"]),
    ],
)
def test_binding_compared_with_dry_run(
    plan: Sequence[dict[str, object]], levels: list[str]
) -> None:
    assert [row.level for row in pilot.compare_with_plan(plan, [RANK])] == levels


def test_first_line_counts_failures() -> None:
    rows = [
        pilot.ReportLine("ok", "a", "b"),
        pilot.ReportLine("FAILED", "c", "d"),
        pilot.ReportLine("not tried", "e", "f"),
    ]

    assert pilot.report_text(rows).splitlines()[0] == "clusterrun pilot: 1 failed, 1 not tried"


@pytest.mark.parametrize(
    ("listed", "level"),
    [
        (None, "not tried"),
        ([["00000000:00:06.0", UUID, "NVIDIA H200"]], "ok"),
        ([["00000000:00:07.0", UUID, "NVIDIA H200"]], "FAILED"),
        ([], "FAILED"),
    ],
)
def test_gpus_compared_with_nvidia_smi(
    listed: list[list[str]] | None, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pilot, "nvidia_smi", lambda _query: listed)
    machine = inspect(tree_at(CAPTURES / "one_h200.json"), {}, None, "captured")

    found = list(pilot.describe_machine(machine))

    assert ("GPU 0", "NUMA node 0 (NVML memory affinity)") in [each[1:] for each in found]
    assert any("1 GPU (NVIDIA H200), 1 visible" in each.found for each in found)
    assert found[-1].level == level


def test_gpu_memory_ignores_gpus_that_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """MIG slices have no value."""
    monkeypatch.setattr(pilot, "nvidia_smi", lambda _query: [["512"], ["[N/A]"]])

    assert pilot.gpu_memory() == [512]


@pytest.mark.parametrize(
    ("script", "rows"),
    [
        ("echo '512, NVIDIA H200'", [["512", "NVIDIA H200"]]),
        ("echo failed; exit 9", None),
        ("exec sleep 60", None),
        (None, None),
    ],
    ids=["listed", "failed", "hung", "missing"],
)
def test_answer_of_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, rows: object
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if script:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    assert pilot.nvidia_smi("memory.used", 3.0) == rows


@pytest.mark.needs("root")
def test_user_without_a_name_has_no_private_one() -> None:
    """As in a container whose user id has no entry in passwd."""
    code = imports(pilot.private_names) + "import os; os.setuid(54321); print(len(private_names()))"

    printed = output_of(code, LOGNAME="", USER="", LNAME="", USERNAME="")

    assert int(printed) > 1


def test_slices_are_not_counted_as_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot, "nvidia_smi", lambda _query: None)
    machine = inspect(tree_at(CAPTURES / "one_h200.json"), {}, None, "captured")
    [whole] = machine.gpus
    split = replace(machine, gpus=(whole, replace(whole, uuid="MIG-1", parent=whole.uuid)))

    found = [each[1:] for each in pilot.describe_machine(split)]

    assert [each for each in found if each[0].startswith("GPU ")] == [
        ("GPU 0", "NUMA node 0 (NVML memory affinity)")
    ]
    assert any("1 GPU (NVIDIA H200), 1 visible" in each for _, each in found)
