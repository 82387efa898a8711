"""The relay's files: logs, the link to the latest run, and a stdout that is a file."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.door import Destination, descriptor_output
from tests.workers.relay.relay_bench import RelayBench, fill, read_until, read_while, relay_on


@pytest.fixture
def screen() -> Iterator[tuple[int, int]]:
    """Return the pipe that is standard error, the reader's end first."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def bench(screen: tuple[int, int]) -> Iterator[RelayBench]:
    """Return a relay whose standard output is not read."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with relay_on(nowhere, screen[1]) as bench:
        os.close(nowhere)
        yield bench


def test_files_that_are_there_are_appended_to(bench: RelayBench, tmp_path: Path) -> None:
    """A run id that is used twice loses nothing."""
    (tmp_path / "rank-0.out").write_bytes(b"before\n")
    printer = bench.open(0, logs=tmp_path)

    os.write(printer.stdout, b"after\n")
    printer.close()
    bench.relay.close(seconds=5)

    assert (tmp_path / "rank-0.out").read_bytes() == b"before\nafter\n"


def test_latest_points_to_the_run(bench: RelayBench, tmp_path: Path) -> None:
    """An older link is replaced, and nothing else is left in the folder."""
    (tmp_path / "latest").symlink_to("old")

    bench.relay.link(tmp_path / "latest", "run-1")
    bench.relay.close(seconds=5)

    assert (tmp_path / "latest").readlink() == Path("run-1")
    assert [entry.name for entry in tmp_path.iterdir()] == ["latest"]


def test_a_link_that_cannot_be_is_reported(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path
) -> None:
    """A folder with the name ``latest`` stays."""
    (tmp_path / "latest" / "mine").mkdir(parents=True)

    bench.relay.link(tmp_path / "latest", "run-1")
    text = read_until(screen[0], b"\n")

    assert text == f"clusterrun: link {tmp_path}/latest: Is a directory\n".encode()
    assert (tmp_path / "latest" / "mine").is_dir()


def test_a_file_that_cannot_be_opened_is_reported_once(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path
) -> None:
    """The worker continues without it, and the other file is written."""
    (tmp_path / "rank-0.out").mkdir()
    printer = bench.open(0, logs=tmp_path)
    path = tmp_path / "rank-0.out"
    notice = f"clusterrun: log file {path}: Is a directory; rank 0 goes on without it\n"

    seen = read_until(screen[0], b"without it\n")
    for _ in range(100):
        os.write(printer.stdout, b"x" * 10_000)
    os.write(printer.stderr, b"oops\n")
    printer.close()
    bench.finish(0)
    bench.relay.close(seconds=5)

    assert seen == notice.encode()
    assert os.read(screen[0], 1000) == b"[rank 0] oops\n"
    assert (tmp_path / "rank-0.err").read_bytes() == b"oops\n"
    assert bench.relay.losses == (
        descriptor_output.LostOutput(f"log file {path}", 1_000_001, "Is a directory"),
    )


def test_however_much_was_lost_is_told(tmp_path: Path) -> None:
    """The names of many ranks' files are more than a socket takes at once."""
    folder = Path(tmp_path, *["d" * 200] * 18)
    ranks = range(100)
    # The notices on the screen are more than an unread pipe takes: the relay would wait for a reader.
    with Path(os.devnull).open("wb") as null, relay_on(null.fileno(), null.fileno()) as bench:
        for rank in ranks:
            path = folder / f"{'x' * 256}{rank}"
            printer = bench.open(rank, stdout_to=Destination(log=path, shown=False))
            os.write(printer.stdout, b"lost\n")
            printer.close()
            bench.finish(rank)
        bench.relay.close(seconds=10)

    assert bench.relay.losses is not None
    assert [loss.size for loss in bench.relay.losses] == [5 for _ in ranks]


@pytest.mark.parametrize("late", [False, True])
def test_what_a_redirected_stream_cannot_write_is_printed(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path, *, late: bool
) -> None:
    """All of it is printed, from before the failure and after it; otherwise it would be lost."""
    log = tmp_path / "rank-0.err"
    log.mkdir()
    only_there = Destination(log, shown=False, shown_without_log=True)
    notice = f"clusterrun: log file {log}: Is a directory; rank 0 prints here instead\n".encode()
    printer = bench.open(0, stderr_to=only_there)

    seen = read_until(screen[0], notice) if late else b""
    os.write(printer.stderr, b"oops\n" * 3)
    seen += read_while(screen[0], lambda text: text.count(b"oops") < 3)
    os.write(printer.stderr, b"late\n")
    printer.close()
    bench.finish(0)
    seen += read_while(screen[0], lambda text: b"late" not in text)
    bench.relay.close(seconds=5)

    assert seen == notice + b"[rank 0] oops\n" * 3 + b"[rank 0] late\n"
    assert bench.relay.losses == ()


def test_a_file_in_a_links_place_stays(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path
) -> None:
    """It may be the log of another launcher."""
    path = tmp_path / "workerlog.0"
    path.write_text("mine")

    bench.relay.link(path, "run/rank-0.log")
    text = read_until(screen[0], b"\n")

    assert text == f"clusterrun: link {path}: there is a file of that name\n".encode()
    assert path.read_text() == "mine"


def test_a_hung_file_system_stops_the_worker_not_the_relay(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path
) -> None:
    """A named pipe without a reader hangs in open, as a file on a dead server does."""
    log = tmp_path / "rank-0.out"
    os.mkfifo(log)
    printer = bench.open(0, logs=tmp_path)
    other = bench.open(1)

    written = fill(printer.stdout)
    bench.finish(7)
    os.write(other.stderr, b"still alive\n")
    seen = read_until(screen[0], b"still alive\n")
    with log.open("rb", buffering=0) as file:
        printer.close()
        bench.finish(0)
        logged = b"".join(iter(lambda: file.read(1 << 16), b""))

    assert seen == b"[rank 1] still alive\n"
    assert logged == b"y\n" * (written // 2)


def test_the_end_comes_as_soon_as_the_files_are_complete(bench: RelayBench, tmp_path: Path) -> None:
    """However much time the relay has: here, a server answers after half a second."""
    log = tmp_path / "rank-0.out"
    os.mkfifo(log)
    printer = bench.open(0, logs=tmp_path)
    os.write(printer.stdout, b"y\n")
    printer.close()
    bench.finish(0)
    server = subprocess.Popen(["sh", "-c", f"sleep 0.5; exec cat {log}"], stdout=subprocess.PIPE)
    started = time.monotonic()

    bench.relay.close(seconds=20)

    assert time.monotonic() - started < 10
    assert server.communicate(timeout=10)[0] == b"y\n"


def test_a_standard_output_that_takes_nothing_is_no_loss(tmp_path: Path) -> None:
    """Log files have the same."""
    full, nowhere = os.open("/dev/full", os.O_WRONLY), os.open(os.devnull, os.O_WRONLY)
    with relay_on(full, nowhere) as bench:
        os.close(full)
        os.close(nowhere)
        printer = bench.open(0, logs=tmp_path)
        os.write(printer.stdout, b"hello\n")
        printer.close()
        bench.finish(0)

    assert bench.relay.losses == ()


def test_a_stdout_that_is_a_file_is_shared_with_others(tmp_path: Path) -> None:
    """``> file``: what the shell wrote before and writes after is kept; the offset is one."""
    path = tmp_path / "out.txt"
    with path.open("wb", buffering=0) as file:
        file.write(b"$ clusterrun train.py\n")
        with relay_on(file.fileno(), file.fileno()) as bench:
            printer = bench.open(0)
            os.write(printer.stdout, b"1%\r2%\rhello\n")
            printer.close()
            bench.finish(0)
        file.write(b"$\n")

    assert path.read_bytes() == b"$ clusterrun train.py\n[rank 0] hello\n$\n"


def test_no_link_is_followed_to_a_log_file(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path
) -> None:
    """Another user may have put it there, where many may write to the folder of logs."""
    mine, log = tmp_path / "mine", tmp_path / "rank-0.err"
    mine.write_text("precious\n")
    log.symlink_to(mine)
    printer = bench.open(0, stderr_to=Destination(log, shown=False, shown_without_log=True))

    os.write(printer.stderr, b"oops\n")
    printer.close()
    bench.finish(0)
    seen = read_while(screen[0], lambda text: b"oops" not in text)
    bench.relay.close(seconds=5)

    assert b"Too many levels of symbolic links; rank 0 prints here instead\n" in seen
    assert mine.read_text() == "precious\n"
