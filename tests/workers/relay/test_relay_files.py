"""The relay's files: logs, the link to the latest run, and a standard output that is a file."""

import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clusterrun import descriptor_output
from clusterrun.workers.fork_server import messages
from clusterrun.workers.relay.routes import Destination

from tests.as_another_user import OTHER_USER
from tests.waiting import wait_until
from tests.workers.relay.relay_bench import RelayBench, fill, read_until, read_while, relay_on


@pytest.fixture
def screen() -> Iterator[tuple[int, int]]:
    """Return the pipe that is standard error, the read end first."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@contextmanager
def leased(path: Path) -> Iterator[Callable[[], object]]:
    """Hold a lease on a new file (fcntl(2)): opening it for writing blocks until the lease is released."""
    # The kernel asks for it by SIGIO.
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    try:
        yield lambda: fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, before)


@pytest.fixture
def bench(screen: tuple[int, int]) -> Iterator[RelayBench]:
    """Return a relay whose standard output is not read."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with relay_on(nowhere, screen[1]) as bench:
        os.close(nowhere)
        yield bench


def test_existing_log_file_is_appended_to(bench: RelayBench, tmp_path: Path) -> None:
    """A run id may be used twice."""
    (tmp_path / "rank-0.out").write_bytes(b"before\n")
    printer = bench.open(0, logs=tmp_path)

    os.write(printer.stdout, b"after\n")
    bench.end()

    assert (tmp_path / "rank-0.out").read_bytes() == b"before\nafter\n"


def test_latest_is_a_link_to_the_run(bench: RelayBench, tmp_path: Path) -> None:
    """An older link is replaced, and nothing else is left in the folder."""
    (tmp_path / "latest").symlink_to("old")

    bench.relay.send(messages.Link(str(tmp_path / "latest"), "run-1"))
    bench.relay.close(seconds=5)

    assert (tmp_path / "latest").readlink() == Path("run-1")
    assert [entry.name for entry in tmp_path.iterdir()] == ["latest"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [("folder", "Is a directory"), ("file", "a file with that name already exists")],
)
def test_what_is_in_place_of_a_link_stays(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path, kind: str, why: str
) -> None:
    """It is reported: it may be the log of another launcher."""
    path = tmp_path / "workerlog.0"
    own = path / "mine" if kind == "folder" else path
    own.parent.mkdir(exist_ok=True)
    own.write_text("mine")

    bench.relay.send(messages.Link(str(path), "run/rank-0.log"))

    assert read_until(screen[0], b"\n") == f"clusterrun: link {path}: {why}\n".encode()
    assert own.read_text() == "mine"


def test_unopenable_file_is_reported_once(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path
) -> None:
    """The worker continues without it, and the other file is written."""
    (tmp_path / "rank-0.out").mkdir()
    printer = bench.open(0, logs=tmp_path)
    path = tmp_path / "rank-0.out"
    notice = f"clusterrun: log file {path}: Is a directory; rank 0 continues without it\n"

    seen = read_until(screen[0], b"without it\n")
    for _ in range(100):
        os.write(printer.stdout, b"x" * 10_000)
    os.write(printer.stderr, b"oops\n")
    bench.end()

    assert seen == notice.encode()
    assert os.read(screen[0], 1000) == b"[rank 0] oops\n"
    assert (tmp_path / "rank-0.err").read_bytes() == b"oops\n"
    assert bench.relay.losses == (
        descriptor_output.LostOutput(f"log file {path}", 1_000_001, "Is a directory"),
    )


def test_all_lost_output_is_reported(tmp_path: Path) -> None:
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
def test_redirected_output_is_printed_if_its_file_fails(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path, *, late: bool
) -> None:
    """All of it, from before the failure and after it."""
    log = tmp_path / "rank-0.err"
    log.mkdir()
    only_there = Destination(log, shown=False, shown_if_log_fails=True)
    notice = (
        f"clusterrun: log file {log}: Is a directory; rank 0 prints to clusterrun's output"
        " instead\n"
    ).encode()
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


def test_hung_file_system_blocks_its_worker_only(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path
) -> None:
    """Opening a leased file hangs, as on a dead file server."""
    log = tmp_path / "rank-0.out"
    with leased(log):
        printer = bench.open(0, logs=tmp_path)
        other = bench.open(1)
        written = fill(printer.stdout)
        bench.finish(7)
        os.write(other.stderr, b"still alive\n")
        seen = read_until(screen[0], b"still alive\n")
    bench.end(10)

    assert seen == b"[rank 1] still alive\n"
    assert log.read_bytes() == b"y\n" * (written // 2)


def test_relay_ends_when_files_are_complete(bench: RelayBench, tmp_path: Path) -> None:
    """Not later: here a file server answers after half a second."""
    log = tmp_path / "rank-0.out"
    with leased(log) as release:
        printer = bench.open(0, logs=tmp_path)
        os.write(printer.stdout, b"y\n")
        printer.close()
        bench.finish(0)
        server = threading.Timer(0.5, release)
        server.start()
        started = time.monotonic()

        bench.relay.close(seconds=20)

        assert time.monotonic() - started < 10
        server.join(10)
    assert log.read_bytes() == b"y\n"


def test_full_stdout_is_no_loss_with_log_files(tmp_path: Path) -> None:
    full, nowhere = os.open("/dev/full", os.O_WRONLY), os.open(os.devnull, os.O_WRONLY)
    with relay_on(full, nowhere) as bench:
        os.close(full)
        os.close(nowhere)
        printer = bench.open(0, logs=tmp_path)
        os.write(printer.stdout, b"hello\n")
        bench.end()

    assert bench.relay.losses == ()


def test_stdout_file_is_shared_with_the_shell(tmp_path: Path) -> None:
    """``> file``: what the shell writes before and after stays, at one common offset."""
    path = tmp_path / "out.txt"
    with path.open("wb", buffering=0) as file:
        file.write(b"$ clusterrun train.py\n")
        with relay_on(file.fileno(), file.fileno()) as bench:
            printer = bench.open(0)
            os.write(printer.stdout, b"1%\r2%\rhello\n")
            bench.end()
        file.write(b"$\n")

    assert path.read_bytes() == b"$ clusterrun train.py\n[rank 0] hello\n$\n"


LINK = "it is a symbolic link, which is not followed"
HARD_LINK = "it has another name as well (a hard link)"


def plant(path: Path, kind: str, target: Path) -> None:
    """Put what another user may have created where a file or folder of ours is to be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "file":
            path.touch(mode=0o666)
        case "link":
            path.symlink_to(target)
        case "hard link":
            path.hardlink_to(target)
        case _:
            os.mkfifo(path, 0o666)


@pytest.mark.parametrize("planted", ["run", "run/attempt-0", "run/attempt-0/n1-0"])
@pytest.mark.parametrize(
    ("kind", "why"), [("link", LINK), ("file", "Not a directory"), ("pipe", "Not a directory")]
)
def test_planted_log_folder_is_not_used(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path, planted: str, *, kind: str, why: str
) -> None:
    """Nothing is written elsewhere; one line reports it for all files, and the output is printed."""
    top, mine = tmp_path / "logs", tmp_path / "mine"
    mine.mkdir()
    plant(top / planted, kind, mine)
    folder = top / "run/attempt-0/n1-0"
    for rank in range(2):
        to = Destination(folder / f"rank-{rank}.err", shown=False, shown_if_log_fails=True)
        printer = bench.open(rank, stderr_to=to, log_dir=top)
        os.write(printer.stderr, b"oops\n")
        printer.close()
        bench.finish(rank)
    bench.relay.send(messages.Append(str(folder / "stacks.txt"), "stacks", str(top)))

    seen = read_while(screen[0], lambda text: text.count(b"oops") < 2)
    bench.relay.close(seconds=5)

    notice = f"clusterrun: log folder {top / planted}: {why}; no log file is written there\n"
    assert seen.count(b"clusterrun: ") == seen.count(notice.encode()) == 1
    assert list(mine.iterdir()) == []
    assert bench.relay.losses == ()


def test_named_log_folder_may_be_a_link(bench: RelayBench, tmp_path: Path) -> None:
    """A folder below it that is removed between two files is made again."""
    (tmp_path / "disk").mkdir()
    top = tmp_path / "logs"
    top.symlink_to(tmp_path / "disk")
    for rank in range(2):
        printer = bench.open(rank, logs=top / "run/attempt-0", log_dir=top)
        file = top / f"run/attempt-0/rank-{rank}.out"
        wait_until((file.with_suffix(".err")).exists, "the files are open")
        os.write(printer.stdout, b"hello\n")
        wait_until(file.read_text, "it is written")
        printer.close()
        bench.finish(rank)
        if rank == 0:
            shutil.rmtree(top / "run")
    bench.relay.close(seconds=5)

    assert [path.name for path in (tmp_path / "disk/run/attempt-0").iterdir()] != []


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("link", LINK),
        ("hard link", HARD_LINK),
        ("pipe", "it is not a regular file"),
        ("pipe with a reader", "it is not a regular file"),
    ],
)
def test_planted_log_file_is_not_written(
    bench: RelayBench, screen: tuple[int, int], tmp_path: Path, kind: str, why: str
) -> None:
    """Nor is it waited for, and other files are written."""
    log, mine = tmp_path / "rank-0.err", tmp_path / "mine"
    mine.write_text("precious\n")
    plant(log, kind, mine)
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK) if "reader" in kind else None
    printer = bench.open(0, stderr_to=Destination(log, shown=False, shown_if_log_fails=True))
    other = bench.open(1, logs=tmp_path)

    os.write(printer.stderr, b"oops\n")
    os.write(other.stdout, b"hello\n")
    seen = read_while(screen[0], lambda text: b"oops" not in text)
    bench.end()

    assert f"log file {log}: {why}; rank 0 prints to clusterrun's output instead\n".encode() in seen
    assert mine.read_text() == "precious\n"
    assert (tmp_path / "rank-1.out").read_text() == "hello\n"
    if reader is not None:
        assert os.read(reader, 100) == b""
        os.close(reader)


@pytest.fixture
def common(tmp_path: Path) -> Path:
    """Return a folder in which all users may create files, like /tmp."""
    folder = tmp_path / "common"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


THEIR_LINK = f"it is a symbolic link owned by user {OTHER_USER}, not by you"
THEIR_FILE = f"user {OTHER_USER} has put it there"


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("link", THEIR_LINK),
        ("own link to a link", THEIR_LINK),
        ("file", THEIR_FILE),
        ("pipe", THEIR_FILE),
        ("hard link", HARD_LINK),
    ],
)
def test_planted_named_file_is_not_written(
    bench: RelayBench, screen: tuple[int, int], common: Path, tmp_path: Path, *, kind: str, why: str
) -> None:
    """The kernel refuses some of these only if fs.protected_symlinks and its kin are set."""
    path, mine = common / "events", tmp_path / "mine"
    mine.write_text("precious\n")
    planted = common / "planted" if kind.startswith("own") else path
    plant(planted, kind.removeprefix("own link to a "), mine)
    if planted != path:
        path.symlink_to(planted)
    if kind != "hard link":
        os.chown(planted, OTHER_USER, OTHER_USER, follow_symlinks=False)

    bench.relay.send(messages.Append(str(path), "secret"))
    seen = read_until(screen[0], b"\n")
    bench.relay.close(seconds=5)

    assert seen == f"clusterrun: file {path}: {why}; clusterrun continues without it\n".encode()
    assert mine.read_text() == "precious\n"
    assert not planted.is_file() or planted.read_bytes() in {b"", b"precious\n"}


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe"])
def test_named_file_may_be_a_link_or_pipe_of_the_user(
    bench: RelayBench, common: Path, tmp_path: Path, kind: str
) -> None:
    """Even in a folder where other users may create files."""
    path, mine = common / "events", tmp_path / "mine"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("../mine")
        if kind == "link":
            mine.write_text("before\n")

    bench.relay.send(messages.Append(str(path), "line"))
    text = ""
    if kind == "pipe":
        with path.open() as reader:
            text = reader.readline()
    bench.relay.close(seconds=5)

    assert (text or mine.read_text()).removeprefix("before\n") == "line\n"
