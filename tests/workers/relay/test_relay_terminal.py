"""The relay on a terminal: colours, live lines, and a reader that stops."""

import fcntl
import os
import struct
import termios
import tty
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from clusterrun.workers.relay import streams

from tests.waiting import wait_until
from tests.workers.relay.relay_bench import RelayBench, fill, read_until, read_while, relay_on

CLEAR = b"\r\x1b[K"
STOP, GO_ON = b"\x13", b"\x11"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Return a terminal of 40 columns: the user's side of it, and the launcher's."""
    user, ours = os.openpty()
    tty.setraw(ours)
    attributes = termios.tcgetattr(ours)
    attributes[0] |= termios.IXON
    termios.tcsetattr(ours, termios.TCSANOW, attributes)
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", 24, 40, 0, 0))
    yield user, ours
    for descriptor in (user, ours):
        with suppress(OSError):
            os.close(descriptor)


@pytest.fixture
def bench(terminal: tuple[int, int]) -> Iterator[RelayBench]:
    _, ours = terminal
    with relay_on(ours, ours, colour=True) as bench:
        yield bench


def test_drawn_progress_bar_becomes_lines_in_the_log(
    terminal: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, ours = terminal
    monkeypatch.setattr(streams, "SECONDS_OF_A_BAR", 0.1)
    with relay_on(ours, ours) as bench:
        printer = bench.open(0, logs=tmp_path)
        log = tmp_path / "rank-0.err"

        os.write(printer.stderr, b"\r10%\r20%")
        wait_until(lambda: log.exists() and log.read_bytes() == b"20%\n")
        printer.close()
        bench.finish(0)
        seen = read_until(user, b"\n")

    assert seen == CLEAR + b"[rank 0] 20%" + CLEAR + b"[rank 0] 20%\n"
    assert log.read_bytes() == b"20%\n20%\n"


@pytest.mark.parametrize("how", ["not read", "Ctrl-S"])
def test_stopped_terminal_blocks_the_worker_only(
    bench: RelayBench, terminal: tuple[int, int], how: str
) -> None:
    """The relay answers the agent, and all output arrives once the terminal continues."""
    user, _ = terminal
    if how == "Ctrl-S":
        os.write(user, STOP)
    printer = bench.open(0)

    written = fill(printer.stdout)
    bench.relay.print_text("clusterrun: stopping")
    bench.finish(5)
    os.write(user, GO_ON)
    text = read_while(user, lambda text: text.count(b"m y\n") < written // 2)

    assert b"\nclusterrun: stopping\n" in text
    assert text.count(b"[rank 0]\x1b[0m y\n") == written // 2


def test_log_is_written_after_the_terminal_is_gone(
    bench: RelayBench, terminal: tuple[int, int], tmp_path: Path
) -> None:
    """The window was closed under nohup."""
    user, _ = terminal
    printer = bench.open(0, logs=tmp_path)
    log = tmp_path / "rank-0.out"
    os.write(printer.stdout, b"before\n")
    read_until(user, b"before\n")

    os.close(user)
    written = 0
    for _ in range(100):
        written += os.write(printer.stdout, b"y\n" * 5000)
    bench.finish(0)

    wait_until(lambda: log.read_bytes() == b"before\n" + b"y\n" * (written // 2))
    assert not list(bench.relay.events(now=1.0))
