"""Clean exits of so many ranks that their lines name only some of them."""

import pytest

from tests.histories.job_history import Job


@pytest.mark.parametrize(
    ("exits", "notice"),
    [
        (
            range(1, 8000, 2),
            (
                "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 3992 more exited with code 0 60 s ago;"
                " ranks 0, 2, 4, 6, 8, 10, 12, 14 and 3992 more still run"
            ),
        ),
        (
            range(1, 8000),
            "ranks 1-7999 exited with code 0 60 s ago; rank 0 still runs",
        ),
    ],
)
def test_notice_names_few_of_many_ranks(exits: range, notice: str) -> None:
    """The job has 8,000 ranks."""
    job = Job(nodes=8, workers=1000).exits(*exits).delivers_all().time_passes(1).delivers_all()

    seen = job.time_passes(59).delivers_all().new_lines()
    assert [line for line in seen if "exited with code 0" in line] == [f"node 0 prints: {notice}"]


def test_failure_after_many_exits() -> None:
    """The verdict names as many ranks as fit."""
    job = (
        Job(workers=1200)
        .exits(*range(1, 1200))
        .delivers_all()
        .time_passes(2)
        .exits(0, code=3)
        .settles()
    )

    after = "2.0 s after ranks 1-1024 and 175 others exited with 0"
    assert job.new_lines()[-1] == f"node 0 ends with 3: rank 0 failed {after}"
