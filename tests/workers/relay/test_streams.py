"""Workers' output on one screen: lines, a live line, progress bars, and filtered files."""

import fcntl
import os
import select
import struct
import termios
import time
import tty
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.workers.relay import duplicate_tracebacks, screen, streams
from clusterrun.workers.relay.files import OutputFiles
from clusterrun.workers.relay.lines import TextFilter
from clusterrun.workers.relay.routes import Destination, LauncherOutput, LineStyle, WorkerOutput
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import wait_until

CLEAR = b"\r\x1b[K"

PATIENCE = 10.0
"""Seconds after which a test gives up waiting."""

NOT_DUE = float("inf")


class Node:
    """Workers that print to one screen; the test sets the time."""

    def __init__(self, reader: int, ours: int) -> None:
        self.now = 1.0
        self.style = LineStyle()
        self.files = OutputFiles(lambda: None)
        self.screen = screen.Screen(LauncherOutput(ours, ours), self.files.opened)
        self.tracebacks = duplicate_tracebacks.Tracebacks(lambda: self.now)
        self.to = Destination(None)
        self._reader = reader
        self._workers: dict[int, streams.RelayedWorker] = {}
        self._pipes: dict[tuple[int, str], int] = {}

    def stream(self, rank: int, name: str = "stderr") -> streams.Stream:
        """Return a worker's stream; the worker is opened with its first one."""
        if rank not in self._workers:
            label = f"rank {rank}"
            output = WorkerOutput(
                local_rank=LocalRank(rank),
                label=label,
                prefix=f"[{label}] ",
                stdout_to=self.to,
                stderr_to=self.to,
                error_file=None,
                style=self.style,
            )
            self._workers[rank] = streams.RelayedWorker(output, self.tracebacks)
        worker = self._workers[rank]
        if name not in worker.streams:
            reader, self._pipes[rank, name] = os.pipe()
            worker.streams[name] = streams.Stream(
                reader, name, worker, self.screen.stdout, self.files
            )
        return worker.streams[name]

    def print(self, rank: int, text: bytes, name: str = "stderr") -> None:
        """Have a worker print, and read that."""
        stream = self.stream(rank, name)
        for at in range(0, len(text), 1 << 14):
            os.write(self._pipes[rank, name], text[at : at + (1 << 14)])
            stream.read(self.now)

    def set_time(self, now: float) -> None:
        """Set the time, and do what is due then."""
        self.now = now
        for worker in self._workers.values():
            for stream in worker.streams.values():
                stream.show_due(now)
        self.tracebacks.update(now)
        self.screen.draw(now)

    def assert_shown(self, text: bytes) -> None:
        """Assert that the screen now gets exactly this."""
        received = b""
        deadline = time.monotonic() + PATIENCE
        while len(received) < len(text) and time.monotonic() < deadline:
            self.set_time(self.now)
            if select.select([self._reader], [], [], 0.1)[0]:
                received += os.read(self._reader, 1 << 16)
        self.set_time(self.now)
        if select.select([self._reader], [], [], 0.0)[0]:
            received += os.read(self._reader, 1 << 16)
        assert received == text

    def written(self, path: Path) -> bytes:
        """Return the content of a file once all is written."""
        wait_until(lambda: self.files.is_idle)
        return path.read_bytes()

    def close(self) -> None:
        for output in self.screen.outputs:
            os.close(output.fileno())
        for worker in self._workers.values():
            for stream in worker.streams.values():
                os.close(stream.descriptor)
        for descriptor in self._pipes.values():
            os.close(descriptor)


@pytest.fixture
def node() -> Iterator[Node]:
    """Return workers that print to a pipe."""
    yield from node_on(*os.pipe())


@pytest.fixture
def on_terminal() -> Iterator[Node]:
    """Return workers that print to a terminal of 30 columns."""
    reader, ours = os.openpty()
    tty.setraw(ours)
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", 24, 30, 0, 0))
    yield from node_on(reader, ours)


def node_on(reader: int, ours: int) -> Iterator[Node]:
    node = Node(reader, ours)
    yield node
    node.close()
    os.close(ours)
    os.close(reader)


def test_lines_have_a_prefix(node: Node) -> None:
    node.print(0, b"a\nb\n")
    node.print(1, b"c\n")

    node.assert_shown(b"[rank 0] a\n[rank 0] b\n[rank 1] c\n")


def test_long_line_is_whole_while_no_other_rank_prints(node: Node) -> None:
    """Its pieces have one prefix; a line of another rank breaks it."""
    long = b"x" * (screen.MAX_LINE_LENGTH + 1)
    node.print(0, long)
    node.print(0, b" and ")
    node.print(1, b"hello\n")
    node.print(0, b"three\n")

    node.assert_shown(b"[rank 0] " + long + b" and \n[rank 1] hello\n[rank 0] three\n")


def test_notice_begins_a_new_line(node: Node) -> None:
    """After an incomplete line of a single worker."""
    node.style = LineStyle(raw=True)

    node.print(0, b"prompt> ", "stdout")
    node.screen.print_text("clusterrun: hello")
    node.print(0, b"answer", "stdout")

    node.assert_shown(b"prompt> \nclusterrun: hello\nanswer")


def test_streams_of_a_single_worker_are_shown_as_they_come(node: Node) -> None:
    """An incomplete line of one stream is not broken for the other."""
    node.style = LineStyle(raw=True)

    node.print(0, b"begun ", "stdout")
    node.print(0, b"\rand ", "stderr")
    node.print(0, b"ended\xff\n", "stdout")

    node.assert_shown(b"begun \rand ended\xff\n")


def test_lowest_rank_has_the_live_line(on_terminal: Node) -> None:
    """Once it has ended its line, the next rank has it."""
    on_terminal.print(1, b"20%")
    on_terminal.print(0, b"10%")
    on_terminal.assert_shown(CLEAR + b"[rank 0] 10%")

    on_terminal.print(0, b"\n")
    on_terminal.set_time(2.0)
    on_terminal.assert_shown(CLEAR + b"[rank 0] 10%\n" + CLEAR + b"[rank 1] 20%")


def test_bars_of_several_ranks_are_printed_as_lines(on_terminal: Node) -> None:
    """Every two seconds; another incomplete line is the live one. A bar that remains alone is drawn."""
    on_terminal.print(0, b"\r10%")
    on_terminal.assert_shown(CLEAR + b"[rank 0] 10%")
    on_terminal.print(1, b"\r20%")
    on_terminal.print(2, b"loading ")
    on_terminal.set_time(1.5)
    on_terminal.assert_shown(CLEAR + b"[rank 2] loading ")

    on_terminal.set_time(3.6)
    on_terminal.assert_shown(CLEAR + b"[rank 0] 10%\n[rank 1] 20%\n" + CLEAR + b"[rank 2] loading ")

    on_terminal.print(1, b"\r30%")
    on_terminal.set_time(5.5)
    on_terminal.assert_shown(b"")
    on_terminal.set_time(5.6)
    on_terminal.assert_shown(CLEAR + b"[rank 1] 30%\n" + CLEAR + b"[rank 2] loading ")

    on_terminal.print(1, b"\n")
    on_terminal.print(2, b"\n")
    on_terminal.set_time(6.0)
    on_terminal.assert_shown(CLEAR + b"[rank 1] 30%\n[rank 2] loading \n" + CLEAR + b"[rank 0] 10%")


@pytest.mark.parametrize("on_stdout", [b"\r20%", b"prompt> "])
def test_bar_on_stderr_is_drawn_before_stdout(on_terminal: Node, on_stdout: bytes) -> None:
    on_terminal.print(0, on_stdout, "stdout")
    on_terminal.print(0, b"\r10%", "stderr")

    on_terminal.assert_shown(CLEAR + b"[rank 0] 10%")


def test_lines_are_printed_above_the_live_line(on_terminal: Node) -> None:
    """It is removed before they are printed, and drawn again after them."""
    on_terminal.print(0, b"\r10%")
    on_terminal.assert_shown(CLEAR + b"[rank 0] 10%")

    on_terminal.print(1, b"hello\n")
    on_terminal.screen.print_text("clusterrun: one\n  two")
    on_terminal.set_time(2.0)

    on_terminal.assert_shown(
        CLEAR + b"[rank 1] hello\nclusterrun: one\n  two\n" + CLEAR + b"[rank 0] 10%"
    )


def test_live_line_is_drawn_ten_times_a_second(on_terminal: Node) -> None:
    """However often a bar moves; ``due`` is the time of the next redraw."""
    drawn = []
    for step in range(1000):
        on_terminal.now = step / 1000
        on_terminal.print(0, b"\r%d%%" % step)
        before = on_terminal.screen.due
        on_terminal.screen.draw(on_terminal.now)
        if on_terminal.screen.due == NOT_DUE:
            drawn.append(before)

    assert 9 <= len(drawn) <= 11
    assert on_terminal.screen.due == pytest.approx(1.0, abs=0.01)


def test_unchanged_live_line_is_not_due(on_terminal: Node) -> None:
    assert on_terminal.screen.due == NOT_DUE

    on_terminal.print(0, b"\r10%")
    on_terminal.assert_shown(CLEAR + b"[rank 0] 10%")
    on_terminal.print(0, b"\r10%")

    assert on_terminal.screen.due == NOT_DUE


def test_stopped_terminal_gets_no_redraws(on_terminal: Node) -> None:
    """Bars would only add to the waiting output."""
    on_terminal.print(1, b"y\n" * 100_000)
    on_terminal.screen.draw(1.0)
    waiting = on_terminal.screen.stdout.output.waiting

    on_terminal.print(0, b"\r10%")
    on_terminal.screen.draw(2.0)

    assert 0 < on_terminal.screen.stdout.output.waiting <= waiting
    assert on_terminal.screen.due == NOT_DUE


def test_live_line_is_cut_to_the_width(on_terminal: Node) -> None:
    """A wrapped line could not be cleared; wide characters count twice, colours not at all."""
    wide = "\u5b57".encode()
    on_terminal.print(0, b"\x1b[K\x1b[32m" + wide * 4 + b"\x1b[31m" + wide * 20)

    on_terminal.assert_shown(
        CLEAR + b"[rank 0] \x1b[32m" + wide * 4 + b"\x1b[31m" + wide * 6 + b"\x1b[0m"
    )


def test_finish_removes_the_live_line(on_terminal: Node) -> None:
    """The shell's prompt begins on an empty line."""
    on_terminal.print(0, b"\r10%")
    on_terminal.assert_shown(CLEAR + b"[rank 0] 10%")

    on_terminal.screen.finish()
    on_terminal.set_time(2.0)

    on_terminal.assert_shown(CLEAR)


def test_pipe_has_no_live_line(node: Node) -> None:
    node.print(0, b"\r10%\r20%")
    node.set_time(5.0)

    node.assert_shown(b"")


def test_shared_terminal_has_neither_live_line_nor_colours(on_terminal: Node) -> None:
    on_terminal.style = LineStyle(merged=True, colour=True)

    on_terminal.print(0, b"\r10%")
    on_terminal.print(0, b"\nhello\n")

    on_terminal.assert_shown(b"[rank 0] 10%\n[rank 0] hello\n")


def test_traceback_is_shown_whole_after_earlier_lines(on_terminal: Node, tmp_path: Path) -> None:
    """Without cursor movements; the log file has the bytes."""
    log = tmp_path / "rank-0.err"
    on_terminal.to = Destination(log)
    text = b'on\nTraceback (most recent call last):\n  File "t.py", line 1\n\x1b[KValueError: no\n'

    on_terminal.print(0, text[:60])
    on_terminal.assert_shown(b"[rank 0] on\n")
    on_terminal.print(0, text[60:])
    on_terminal.stream(0).end()

    on_terminal.assert_shown(
        b'[rank 0] Traceback (most recent call last):\n[rank 0]   File "t.py", line 1\n'
        b"[rank 0] ValueError: no\n"
    )
    assert on_terminal.written(log) == text


def test_blank_line_after_stacks_is_shown(node: Node) -> None:
    """It is held back while the stack of another thread may follow."""
    stack = (
        b'Current thread 0x00007f40b8f2c740 (most recent call first):\n  File "t.py", line 1 in f\n'
    )
    stream = node.stream(0)
    stream.dumps.arm()

    node.print(0, stack + b"\n")
    node.assert_shown(b"")
    stream.end_dumps()
    node.assert_shown(b"[rank 0] \n")
    node.print(0, stack)

    node.assert_shown(b"".join(b"[rank 0] " + line for line in stack.splitlines(keepends=True)))


def test_colours_of_adjacent_ranks_differ() -> None:
    """The space after a prefix has no colour."""
    prefixes = [screen.coloured("[rank 3] ", colour) for colour in range(10)]

    assert len(set(prefixes)) == 10
    assert all(prefix.endswith("m[rank 3]\x1b[0m ") for prefix in prefixes)


@pytest.mark.parametrize("prefix", ["", "  ", "\x1b[7m3\x1b[0m "])
def test_prefix_without_text_or_with_colours_is_unchanged(prefix: str) -> None:
    assert screen.coloured(prefix, 1) == prefix


def draw_bar(node: Node, at: float, state: bytes, shown: bytes = b"") -> None:
    """Draw a progress bar at a time, and assert which line is printed."""
    node.now = at
    node.print(0, b"\r" + state)
    node.assert_shown(b"[rank 0] " + shown + b"\n" if shown else b"")


def test_bar_is_printed_every_ten_seconds(node: Node) -> None:
    """First after ten seconds, and not while the bar does not move."""
    draw = partial(draw_bar, node)

    draw(100, b"1%")
    draw(105, b"2%")
    draw(110, b"3%", b"3%")
    draw(115, b"4%")
    draw(119, b"5%")
    draw(120, b"5%", b"5%")
    draw(125, b"5%")
    draw(131, b"5%")
    draw(132, b"6%", b"6%")


def test_short_bar_is_printed_once_at_its_end(node: Node) -> None:
    """The next bar has a new interval."""
    draw_bar(node, 100, b"1%")
    node.now = 109
    node.print(0, b"\n")
    node.assert_shown(b"[rank 0] 1%\n")
    draw_bar(node, 110, b"2%")

    assert node.stream(0).due == 120


def test_bar_that_does_not_move_is_not_due(node: Node) -> None:
    stream = node.stream(0)
    assert stream.due == NOT_DUE

    draw_bar(node, 100, b"1%")
    assert stream.due == 110

    draw_bar(node, 110, b"1%", b"1%")
    assert stream.due == NOT_DUE

    node.print(0, b"\n")
    node.set_time(111)
    assert stream.due == NOT_DUE


def test_bar_overwritten_with_blanks_is_not_printed(node: Node) -> None:
    """As by tqdm."""
    draw_bar(node, 100, b"     ")
    draw_bar(node, 200, b"     ")

    assert node.stream(0).due == NOT_DUE


def test_filtered_file_has_matching_lines_with_prefix(node: Node, tmp_path: Path) -> None:
    """Each once, however many texts it contains; texts are not regular expressions."""
    path = tmp_path / "run/filtered_stdout.log"
    node.to = Destination(None, filtered=path, filters=("loss", "e.g.", "1,000"))

    node.print(3, b"loss: 1 loss: 2\nnothing\neggs\ne.g. this\n\nat 1,000")
    node.print(3, b"\nthe last loss\n")

    assert node.written(path) == (
        b"[rank 3] loss: 1 loss: 2\n[rank 3] e.g. this\n[rank 3] at 1,000\n[rank 3] the last loss\n"
    )


def test_ranks_share_a_filtered_file(node: Node, tmp_path: Path) -> None:
    node.to = Destination(None, filtered=tmp_path / "filtered", filters=("loss",))

    for rank in range(3):
        node.print(rank, b"a loss\n")

    lines = node.written(tmp_path / "filtered").splitlines()
    assert sorted(lines) == [f"[rank {rank}] a loss".encode() for rank in range(3)]


def test_filtered_file_without_matches_is_empty(node: Node, tmp_path: Path) -> None:
    node.to = Destination(None, filtered=tmp_path / "filtered", filters=("loss",))

    node.print(0, b"nothing\n")

    assert node.written(tmp_path / "filtered") == b""


def test_printed_bar_is_filtered_like_a_line(node: Node, tmp_path: Path) -> None:
    node.to = Destination(None, filtered=tmp_path / "filtered", filters=("%",))

    draw_bar(node, 100, b"1%")
    draw_bar(node, 110, b"2%", b"2%")

    assert node.written(tmp_path / "filtered") == b"[rank 0] 2%\n"


@given(
    lines=st.lists(st.text("ab\r"), max_size=9),
    texts=st.lists(st.text("ab", min_size=1), min_size=1),
)
def test_filter_selects_lines_that_contain_a_text(lines: list[str], texts: list[str]) -> None:
    """Like torchrun."""
    found = [line for line in lines if any(text in line for text in texts)]

    text = TextFilter(b"", texts).matching("".join(f"{line}\n" for line in lines).encode())

    assert text.decode() == "".join(f"{line}\n" for line in found)


def test_piece_of_a_long_line_ends_with_a_newline() -> None:
    """Other ranks' lines follow it."""
    assert TextFilter(b"", ["b"]).matching(b"a\nabc") == b"abc\n"


@pytest.mark.parametrize("colour", [False, True])
def test_live_line_is_cut_to_a_terminal_narrower_than_its_prefix(
    on_terminal: Node, colour: bool
) -> None:
    """A redraw clears one row; what has wrapped would stay."""
    on_terminal.style = LineStyle(colour=colour)
    on_terminal.print(10**30, b"\r10%")

    cut = b"[rank 1" + b"0" * 22
    on_terminal.assert_shown(CLEAR + (b"\x1b[36m" + cut + b"\x1b[0m" * 2 if colour else cut))
