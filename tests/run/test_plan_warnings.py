"""Warnings about a plan, as they are printed."""

from msgspec.structs import replace

from tests.plans import plan_of


def test_equal_warnings_are_printed_once() -> None:
    """With the ranks that they are about; those about the node come first."""
    plan = plan_of(3, first_rank=4)
    warnings = ("no GPU", "too few CPUs", "no GPU")
    workers = tuple(
        replace(worker, warning=warning)
        for worker, warning in zip(plan.workers, warnings, strict=True)
    )

    what = replace(plan, workers=workers, warnings=("two NUMA nodes",))

    assert list(what.all_warnings()) == [
        "two NUMA nodes",
        "ranks 4, 6: no GPU",
        "rank 5: too few CPUs",
    ]
