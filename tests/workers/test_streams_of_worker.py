"""What a worker reads and prints to."""

import fcntl
import os
from pathlib import Path

import pytest

from tests.workers.door import (
    PIPE_BYTES,
    Std,
    streams_of_worker,
)
from tests.workers.on_a_terminal import answer_of


def test_pipes_hold_a_burst() -> None:
    """The pipes are as large as the kernel grants to this user."""
    with streams_of_worker(reads=True, direct=Std.NONE) as (streams, _):
        size = fcntl.fcntl(streams[1], fcntl.F_GETPIPE_SZ)

    assert size in {PIPE_BYTES, 64 << 10, 4 << 10}


def test_nothing_is_left_open() -> None:
    """Processes that are started meanwhile inherit nothing."""
    before = open_descriptors()
    with streams_of_worker(reads=False, direct=Std.NONE) as (streams, pipes):
        new = open_descriptors() - before

        assert len(new) == 5
        assert not any(os.get_inheritable(descriptor) for descriptor in new)
        assert {*streams, *pipes.values()} == new
    assert not open_descriptors() - before


@pytest.mark.parametrize(
    ("direct", "redirected", "expected"),
    [
        (Std.ALL, "", [[0, 1, 2]]),
        (Std.ALL, "1", [[0, "pipe", 2], "stdout"]),
        (Std.OUT, "", [[0, 1, "pipe"], "stderr"]),
        (Std.NONE, "", [[0, "pipe", "pipe"], "stdout", "stderr"]),
    ],
)
def test_the_terminal_itself(direct: Std, redirected: str, expected: list[object]) -> None:
    """One worker writes to it unless output is kept; a stream that is no terminal goes by a pipe."""
    answer = answer_of(f"""
        from tests.workers.door import Std, streams_of_worker
        if {redirected!r}:
            os.dup2(os.open(os.devnull, os.O_WRONLY), int({redirected!r}))
        with streams_of_worker(reads=True, direct=Std({direct.value})) as (streams, pipes):
            direct = [stream if stream < 3 else "pipe" for stream in streams]
            answer(direct, *pipes)
    """)

    assert answer == expected


def open_descriptors() -> set[int]:
    names = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    return {name for name in names if Path(f"/proc/self/fd/{name}").exists()}
