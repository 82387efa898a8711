"""A worker's standard streams."""

import fcntl
import os
from pathlib import Path

import pytest
from clusterrun.job import values
from clusterrun.workers import node_workers

from tests.workers.on_a_terminal import answer_of


def test_pipes_hold_a_burst() -> None:
    """They are as large as the kernel allows this user."""
    with node_workers.streams_of_worker(reads=True, direct=values.Std.NONE) as (streams, _):
        size = fcntl.fcntl(streams[1], fcntl.F_GETPIPE_SZ)

    assert size in {node_workers.PIPE_BYTES, 64 << 10, 4 << 10}


def test_all_descriptors_are_closed() -> None:
    """Processes that are started meanwhile inherit none."""
    before = open_descriptors()
    with node_workers.streams_of_worker(reads=False, direct=values.Std.NONE) as (streams, pipes):
        new = open_descriptors() - before

        assert len(new) == 5
        assert not any(os.get_inheritable(descriptor) for descriptor in new)
        assert {*streams, *pipes.values()} == new
    assert not open_descriptors() - before


@pytest.mark.parametrize(
    ("direct", "redirected", "expected"),
    [
        (values.Std.ALL, "", [[0, 1, 2]]),
        (values.Std.ALL, "1", [[0, "pipe", 2], "stdout"]),
        (values.Std.OUT, "", [[0, 1, "pipe"], "stderr"]),
        (values.Std.NONE, "", [[0, "pipe", "pipe"], "stdout", "stderr"]),
    ],
)
def test_streams_that_are_the_terminal_itself(
    direct: values.Std, redirected: str, expected: list[object]
) -> None:
    """A stream that is not a terminal becomes a pipe."""
    answer = answer_of(f"""
        from clusterrun.workers import node_workers
        from clusterrun.job import values
        if {redirected!r}:
            os.dup2(os.open(os.devnull, os.O_WRONLY), int({redirected!r}))
        direct = values.Std({direct.value})
        with node_workers.streams_of_worker(reads=True, direct=direct) as (streams, pipes):
            direct = [stream if stream < 3 else "pipe" for stream in streams]
            answer(direct, *pipes)
    """)

    assert answer == expected


def open_descriptors() -> set[int]:
    names = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    return {name for name in names if Path(f"/proc/self/fd/{name}").exists()}
