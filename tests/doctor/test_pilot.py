"""The page of the pilot."""

from collections.abc import Sequence

import pytest

from tests.doctor.door import pilot

RANK = {"local_rank": 0, "cpus": [2, 3], "uuid": "abc"}
PLAN = {"local_rank": 0, "cpus": "2-3", "gpus": [{"uuid": "GPU-abc"}]}


def test_names_and_addresses_are_left_out() -> None:
    """Of hosts, users and folders; parts of other words stay."""
    names = {"n0", "n0.site.org", "ada", "/home/ada"}
    text = "rank 1 on n0.site.org (10.0.0.7): /home/ada/x.py of ada: n01 adagrad"

    found = pilot.without_names(text, names)

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
def test_binding(plan: Sequence[dict[str, object]], levels: list[str]) -> None:
    """Each rank has the CPUs and the GPU of the dry run."""
    assert [row.level for row in pilot.compare_with_plan(plan, [RANK])] == levels


def test_the_page_counts_what_has_failed() -> None:
    rows = [
        pilot.PageLine("ok", "a", "b"),
        pilot.PageLine("FAILED", "c", "d"),
        pilot.PageLine("not tried", "e", "f"),
    ]

    assert pilot.page_of(rows).splitlines()[0] == "clusterrun pilot: 1 failed, 1 not tried"
