"""The relay's files: logs, the link to the latest run, and a stdout that is a file."""

import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.relay_bench import RelayBench, fill, read_until, read_while, relay_on
from tests.waiting import wait_until
from tests.workers.door import (
    Destination,
    LostOutput,
)

FULL_DISK = 64 << 10


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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a directory on a file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={FULL_DISK}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", disk], check=True, timeout=10)
    yield disk
    # Lazily: a test that failed may have left a relay there for a moment.
    subprocess.run(["umount", "--lazy", disk], check=True, timeout=10)


def test_logs_hold_what_was_printed_without_prefix(bench: RelayBench, tmp_path: Path) -> None:
    """Their folders are made, and a bar is its last state there, too."""
    logs = tmp_path / "run" / "attempt-0" / "node-0"
    printer = bench.open(0, logs=logs)

    os.write(printer.stdout, b"hello\n\r1%\r2%\nunfinished \xff")
    os.write(printer.stderr, b"oops\n")
    printer.close()
    bench.finish(0)
    bench.relay.close(seconds=5)

    assert (logs / "rank-0.out").read_bytes() == b"hello\n2%\nunfinished \xff\n"
    assert (logs / "rank-0.err").read_bytes() == b"oops\n"


def test_a_silent_rank_has_files_too(bench: RelayBench, tmp_path: Path) -> None:
    """They exist, empty, while it runs."""
    bench.open(0, logs=tmp_path)

    wait_until((tmp_path / "rank-0.err").exists)

    assert (tmp_path / "rank-0.out").read_bytes() == b""


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


def test_the_folder_of_a_link_is_made(bench: RelayBench, tmp_path: Path) -> None:
    """The link may come before the first file."""
    link = tmp_path / "logs" / "mine" / "latest"

    bench.relay.link(link, "run-1")
    bench.relay.close(seconds=5)

    assert link.readlink() == Path("run-1")


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
    assert bench.relay.losses == (LostOutput(f"log file {path}", 1_000_001, "Is a directory"),)


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


def test_a_redirected_stream_is_in_its_file_alone(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path
) -> None:
    """The report still has its last lines."""
    log = tmp_path / "rank-0.err"
    printer = bench.open(0, stderr_to=Destination(log, shown=False, shown_without_log=True))

    os.write(printer.stderr, b"oops\n")
    printer.close()
    ended = bench.finish(0)
    bench.relay.close(seconds=5)

    assert ended.tail == "oops"
    assert log.read_bytes() == b"oops\n"
    assert not select.select([screen[0]], [], [], 0)[0]


def test_lines_with_certain_texts_go_to_a_file_of_their_own(
    bench: RelayBench, tmp_path: Path
) -> None:
    """Each line of any rank has its prefix, and a progress bar is its last state."""
    path = tmp_path / "run" / "filtered_stdout.log"
    to = Destination(None, filtered=path, filters=("loss", "100%"))
    printers = [bench.open(rank, stdout_to=to) for rank in (0, 1)]

    for printer in printers:
        os.write(printer.stdout, b"epoch 1\nloss 0.5\nloss 0")
        os.write(printer.stdout, b".4\n 50% loss\r100%\n")
        printer.close()
    for rank in (0, 1):
        bench.finish(rank)
    bench.relay.close(seconds=5)

    lines = ["loss 0.5", "loss 0.4", "100%"]
    assert sorted(path.read_text().splitlines()) == sorted(
        f"[rank {rank}] {line}" for rank in (0, 1) for line in lines
    )


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


@pytest.mark.needs("root", "mount", "umount")
def test_a_full_disk_stops_the_worker_until_there_is_room(
    bench: RelayBench, screen: tuple[int, int], small_disk: Path
) -> None:
    """It is reported once, the agent gets its answers meanwhile, and no byte is lost."""
    log = small_disk / "rank-0.out"
    notice = f"log file {log}: No space left on device; rank 0 waits until there is room\n"
    printer = bench.open(0, logs=small_disk)

    written = fill(printer.stdout)
    seen = read_until(screen[0], b"room\n")
    bench.finish(7)
    log_when_full = log.stat().st_size
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True, timeout=10)
    os.set_blocking(printer.stdout, True)
    written += os.write(printer.stdout, b"y\n" * 100_000)
    printer.close()
    bench.finish(0)
    bench.relay.close(seconds=5)

    assert seen == b"clusterrun: " + notice.encode()
    assert log_when_full == FULL_DISK
    assert log.read_bytes() == b"y\n" * (written // 2)
    assert not select.select([screen[0]], [], [], 0)[0], "there was something else to tell"
    assert bench.relay.losses == ()


def test_a_job_without_room_still_ends(bench: RelayBench, screen: tuple[int, int]) -> None:
    """Output that can't be written by the end is lost, and the relay reports it."""
    log = Path("/dev/full")
    printer = bench.open(0, stdout_to=Destination(log=log, shown=False))
    os.write(printer.stdout, b"hello\n")
    printer.close()
    bench.finish(0)
    started = time.monotonic()

    bench.relay.close(seconds=0.5)

    assert time.monotonic() - started < 5
    assert b"No space left on device" in os.read(screen[0], 1000)
    assert bench.relay.losses == (LostOutput(f"log file {log}", 6, "No space left on device"),)


@pytest.mark.parametrize("in_files_too", [False, True])
def test_a_standard_output_that_takes_nothing_is_a_loss(
    tmp_path: Path, *, in_files_too: bool
) -> None:
    """It is none if log files have the same."""
    full, nowhere = os.open("/dev/full", os.O_WRONLY), os.open(os.devnull, os.O_WRONLY)
    with relay_on(full, nowhere) as bench:
        os.close(full)
        os.close(nowhere)
        printer = bench.open(0, logs=tmp_path if in_files_too else None)
        os.write(printer.stdout, b"hello\n")
        printer.close()
        bench.finish(0)

    loss = LostOutput("standard output", len("[rank 0] hello\n"), "No space left on device")
    assert bench.relay.losses == (() if in_files_too else (loss,))


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
