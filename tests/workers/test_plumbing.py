"""The standard descriptors of a worker."""

import fcntl
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.domain.ranks import GlobalRank
from launcher.domain.streams import Std
from launcher.workers.plumbing import PIPE_BYTES, Plumbing
from tests.workers.fork_server_bench import worker_of
from tests.workers.on_a_terminal import answer_of


def test_pipes_to_the_relay() -> None:
    """What is written to standard output and error comes out at their other ends."""
    with Plumbing(worker_of(0), None, Std.NONE) as plumbing:
        _, stdout, stderr = plumbing.streams
        os.write(stdout, b"out")
        os.write(stderr, b"err")

        assert plumbing.from_stdout is not None
        assert plumbing.from_stderr is not None
        assert os.read(plumbing.from_stdout, 9) == b"out"
        assert os.read(plumbing.from_stderr, 9) == b"err"


def test_pipes_hold_a_burst() -> None:
    """As far as the kernel grants it to this user."""
    with Plumbing(worker_of(0), None, Std.NONE) as plumbing:
        size = fcntl.fcntl(plumbing.streams[1], fcntl.F_GETPIPE_SZ)

    assert size in {PIPE_BYTES, 64 << 10, 4 << 10}


def test_nothing_is_left_open() -> None:
    """Nor inherited by what we start meanwhile."""
    before = open_descriptors()
    with Plumbing(worker_of(1), None, Std.NONE) as plumbing:
        new = open_descriptors() - before

        assert len(new) == 5
        assert not any(os.get_inheritable(descriptor) for descriptor in new)
        assert {*plumbing.streams, plumbing.from_stdout, plumbing.from_stderr} == new
    assert open_descriptors() == before


def test_nothing_is_left_open_after_a_failure() -> None:
    """Of whatever kind."""
    before = open_descriptors()

    with (
        pytest.raises(RuntimeError),
        Plumbing(worker_of(1), None, Std.NONE),
    ):
        raise RuntimeError

    assert open_descriptors() == before


@pytest.mark.parametrize(("rank", "ours"), [(0, True), (1, False), (8, False)])
def test_input_is_for_the_first_of_all(rank: int, *, ours: bool) -> None:
    """Global rank 0 gets ours, whichever node it is on; the others find it empty."""
    worker = replace(worker_of(0), rank=GlobalRank(rank))

    with Plumbing(worker, None, Std.NONE) as plumbing:
        stdin = plumbing.streams[0]

        assert (stdin == 0) == ours
        assert ours or os.read(stdin, 1) == b""


@pytest.mark.parametrize(
    ("relayed", "redirected", "expected"),
    [
        (Std.NONE, "", [[0, 1, 2], None, None]),
        (Std.NONE, "1", [[0, "pipe", 2], "read", None]),
        (Std.ERR, "", [[0, 1, "pipe"], None, "read"]),
        (Std.ALL, "", [[0, "pipe", "pipe"], "read", "read"]),
    ],
)
def test_the_terminal_itself(relayed: Std, redirected: str, expected: list[object]) -> None:
    """One worker of any rank reads from it, and writes to it unless something is to be kept.

    What is no terminal goes by a pipe.
    """
    said = answer_of(f"""
        from msgspec.structs import replace
        from launcher.domain.ranks import GlobalRank
        from launcher.domain.streams import Std
        from launcher.workers.plumbing import Plumbing
        from launcher.workers.terminal import Terminal
        from tests.workers.fork_server_bench import worker_of
        terminal = Terminal.shared_with_one_worker(0, 1)
        if {redirected!r}:
            os.dup2(os.open(os.devnull, os.O_WRONLY), int({redirected!r}))
        worker = replace(worker_of(0), rank=GlobalRank(8))
        with Plumbing(worker, terminal, Std({relayed.value})) as plumbing:
            direct = [stream if stream < 3 else "pipe" for stream in plumbing.streams]
            ends = [plumbing.from_stdout, plumbing.from_stderr]
            answer(direct, *(end and "read" for end in ends))
    """)

    assert said == expected


def open_descriptors() -> set[int]:
    """Return all descriptors of this process."""
    names = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    return {name for name in names if Path(f"/proc/self/fd/{name}").exists()}
