"""What workers print, from their pipes to one screen: lines, a live line, bars, and files of chosen lines."""

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
    """Workers that print to one screen, while the time stands still unless a test sets it."""

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

    def prints(self, rank: int, text: bytes, name: str = "stderr") -> None:
        """Have a worker print, and its stream read that."""
        stream = self.stream(rank, name)
        for at in range(0, len(text), 1 << 14):
            os.write(self._pipes[rank, name], text[at : at + (1 << 14)])
            stream.read(self.now)

    def at(self, now: float) -> None:
        """Let the time pass, and do what is due then."""
        self.now = now
        for worker in self._workers.values():
            for stream in worker.streams.values():
                stream.show_due(now)
        self.tracebacks.update(now)
        self.screen.draw(now)

    def shows(self, text: bytes) -> None:
        """Assert that the screen now gets exactly this."""
        received = b""
        deadline = time.monotonic() + PATIENCE
        while len(received) < len(text) and time.monotonic() < deadline:
            self.at(self.now)
            if select.select([self._reader], [], [], 0.1)[0]:
                received += os.read(self._reader, 1 << 16)
        self.at(self.now)
        if select.select([self._reader], [], [], 0.0)[0]:
            received += os.read(self._reader, 1 << 16)
        assert received == text

    def written(self, path: Path) -> bytes:
        """Return what is in a file once all is written."""
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


def test_lines_have_their_prefix(node: Node) -> None:
    node.prints(0, b"a\nb\n")
    node.prints(1, b"c\n")

    node.shows(b"[rank 0] a\n[rank 0] b\n[rank 1] c\n")


def test_a_long_line_is_one_line_while_no_other_rank_prints(node: Node) -> None:
    """Its pieces have one prefix; a line of another rank breaks it visibly."""
    long = b"x" * (screen.MAX_LINE_LENGTH + 1)
    node.prints(0, long)
    node.prints(0, b" and ")
    node.prints(1, b"hello\n")
    node.prints(0, b"three\n")

    node.shows(b"[rank 0] " + long + b" and \n[rank 1] hello\n[rank 0] three\n")


def test_a_notice_begins_its_own_line(node: Node) -> None:
    """The launcher's line does not follow what a single worker left unfinished."""
    node.style = LineStyle(raw=True)

    node.prints(0, b"prompt> ", "stdout")
    node.screen.say("clusterrun: hello")
    node.prints(0, b"answer", "stdout")

    node.shows(b"prompt> \nclusterrun: hello\nanswer")


def test_the_two_streams_of_a_single_worker_are_one_text(node: Node) -> None:
    """What it leaves unfinished on one is not broken for the other: both are shown as they come."""
    node.style = LineStyle(raw=True)

    node.prints(0, b"begun ", "stdout")
    node.prints(0, b"\rand ", "stderr")
    node.prints(0, b"ended\xff\n", "stdout")

    node.shows(b"begun \rand ended\xff\n")


def test_the_lowest_rank_has_the_live_line(on_terminal: Node) -> None:
    """Then another one, once the lowest has ended its line."""
    on_terminal.prints(1, b"20%")
    on_terminal.prints(0, b"10%")
    on_terminal.shows(CLEAR + b"[rank 0] 10%")

    on_terminal.prints(0, b"\n")
    on_terminal.at(2.0)
    on_terminal.shows(CLEAR + b"[rank 0] 10%\n" + CLEAR + b"[rank 1] 20%")


def test_bars_of_several_ranks_are_lines(on_terminal: Node) -> None:
    """Each every two seconds, while a line that is no bar is the live one; a bar that is left is drawn."""
    on_terminal.prints(0, b"\r10%")
    on_terminal.shows(CLEAR + b"[rank 0] 10%")
    on_terminal.prints(1, b"\r20%")
    on_terminal.prints(2, b"loading ")
    on_terminal.at(1.5)
    on_terminal.shows(CLEAR + b"[rank 2] loading ")

    on_terminal.at(3.6)
    on_terminal.shows(CLEAR + b"[rank 0] 10%\n[rank 1] 20%\n" + CLEAR + b"[rank 2] loading ")

    on_terminal.prints(1, b"\r30%")
    on_terminal.at(5.5)
    on_terminal.shows(b"")
    on_terminal.at(5.6)
    on_terminal.shows(CLEAR + b"[rank 1] 30%\n" + CLEAR + b"[rank 2] loading ")

    on_terminal.prints(1, b"\n")
    on_terminal.prints(2, b"\n")
    on_terminal.at(6.0)
    on_terminal.shows(CLEAR + b"[rank 1] 30%\n[rank 2] loading \n" + CLEAR + b"[rank 0] 10%")


def test_both_streams_of_one_rank_may_draw(on_terminal: Node) -> None:
    """Standard error comes first."""
    on_terminal.prints(0, b"\r10%", "stderr")
    on_terminal.prints(0, b"\r20%", "stdout")

    on_terminal.shows(CLEAR + b"[rank 0] 10%")


def test_standard_error_comes_before_standard_output(on_terminal: Node) -> None:
    """Progress bars are printed there."""
    on_terminal.prints(0, b"prompt> ", "stdout")
    on_terminal.prints(0, b"\r10%", "stderr")

    on_terminal.shows(CLEAR + b"[rank 0] 10%")


def test_whole_lines_go_above_the_live_line(on_terminal: Node) -> None:
    """It is removed before they are printed, and drawn again after them."""
    on_terminal.prints(0, b"\r10%")
    on_terminal.shows(CLEAR + b"[rank 0] 10%")

    on_terminal.prints(1, b"hello\n")
    on_terminal.screen.say("clusterrun: one\n  two")
    on_terminal.at(2.0)

    on_terminal.shows(CLEAR + b"[rank 1] hello\nclusterrun: one\n  two\n" + CLEAR + b"[rank 0] 10%")


def test_ten_redraws_a_second_are_enough(on_terminal: Node) -> None:
    """This holds however often a bar moves; ``due`` is the time of the next redraw."""
    drawn = []
    for step in range(1000):
        on_terminal.now = step / 1000
        on_terminal.prints(0, b"\r%d%%" % step)
        before = on_terminal.screen.due
        on_terminal.screen.draw(on_terminal.now)
        if on_terminal.screen.due == NOT_DUE:
            drawn.append(before)

    assert 9 <= len(drawn) <= 11
    assert on_terminal.screen.due == pytest.approx(1.0, abs=0.01)


def test_nothing_is_due_when_nothing_changed(on_terminal: Node) -> None:
    """Nothing wakes the relay then."""
    assert on_terminal.screen.due == NOT_DUE

    on_terminal.prints(0, b"\r10%")
    on_terminal.shows(CLEAR + b"[rank 0] 10%")
    on_terminal.prints(0, b"\r10%")

    assert on_terminal.screen.due == NOT_DUE


def test_a_stopped_terminal_gets_no_redraws(on_terminal: Node) -> None:
    """While lines wait for it, bars would only add to what waits."""
    on_terminal.prints(1, b"y\n" * 100_000)
    on_terminal.screen.draw(1.0)
    waiting = on_terminal.screen.stdout.output.waiting

    on_terminal.prints(0, b"\r10%")
    on_terminal.screen.draw(2.0)

    assert 0 < on_terminal.screen.stdout.output.waiting <= waiting
    assert on_terminal.screen.due == NOT_DUE


def test_the_live_line_is_cut_to_the_width(on_terminal: Node) -> None:
    """A wrapped line could not be cleared; wide characters count twice, colours not at all."""
    wide = "\u5b57".encode()
    on_terminal.prints(0, b"\x1b[K\x1b[32m" + wide * 4 + b"\x1b[31m" + wide * 20)

    on_terminal.shows(CLEAR + b"[rank 0] \x1b[32m" + wide * 4 + b"\x1b[31m" + wide * 6 + b"\x1b[0m")


def test_the_end_leaves_no_live_line(on_terminal: Node) -> None:
    """The shell's prompt begins on an empty line."""
    on_terminal.prints(0, b"\r10%")
    on_terminal.shows(CLEAR + b"[rank 0] 10%")

    on_terminal.screen.finish()
    on_terminal.at(2.0)

    on_terminal.shows(CLEAR)


def test_pipes_have_no_live_line(node: Node) -> None:
    """They get whole lines only."""
    node.prints(0, b"\r10%\r20%")
    node.at(5.0)

    node.shows(b"")


def test_on_a_terminal_that_others_print_to_there_is_none(on_terminal: Node) -> None:
    """Nor are there colours: it is no better than a pipe."""
    on_terminal.style = LineStyle(merged=True, colour=True)

    on_terminal.prints(0, b"\r10%")
    on_terminal.prints(0, b"\nhello\n")

    on_terminal.shows(b"[rank 0] 10%\n[rank 0] hello\n")


def test_a_traceback_is_shown_whole_and_in_its_place(on_terminal: Node, tmp_path: Path) -> None:
    """After what came before it, without cursor movements; the log file has the bytes."""
    log = tmp_path / "rank-0.err"
    on_terminal.to = Destination(log)
    text = b'on\nTraceback (most recent call last):\n  File "t.py", line 1\n\x1b[KValueError: no\n'

    on_terminal.prints(0, text[:60])
    on_terminal.shows(b"[rank 0] on\n")
    on_terminal.prints(0, text[60:])
    on_terminal.stream(0).end()

    on_terminal.shows(
        b'[rank 0] Traceback (most recent call last):\n[rank 0]   File "t.py", line 1\n'
        b"[rank 0] ValueError: no\n"
    )
    assert on_terminal.written(log) == text


def test_a_blank_line_after_stacks_is_the_workers_own(node: Node) -> None:
    """It is held back as long as the stack of another thread may follow."""
    stack = (
        b'Current thread 0x00007f40b8f2c740 (most recent call first):\n  File "t.py", line 1 in f\n'
    )
    stream = node.stream(0)
    stream.dumps.arm()

    node.prints(0, stack + b"\n")
    node.shows(b"")
    stream.end_dumps()
    node.shows(b"[rank 0] \n")
    node.prints(0, stack)

    node.shows(b"".join(b"[rank 0] " + line for line in stack.splitlines(keepends=True)))


def test_colours_differ_and_end_with_the_prefix() -> None:
    """Adjacent ranks differ; the space after a prefix has no colour."""
    prefixes = [screen.coloured("[rank 3] ", colour) for colour in range(10)]

    assert len(set(prefixes)) == 10
    assert all(prefix.endswith("m[rank 3]\x1b[0m ") for prefix in prefixes)


@pytest.mark.parametrize("prefix", ["", "  ", "\x1b[7m3\x1b[0m "])
def test_what_has_its_own_look_keeps_it(prefix: str) -> None:
    """A user's prefix may be empty, or have its own colours."""
    assert screen.coloured(prefix, 1) == prefix


def bar(node: Node, at: float, state: bytes, shown: bytes = b"") -> None:
    """Draw a progress bar at a time, and assert which line that makes."""
    node.now = at
    node.prints(0, b"\r" + state)
    node.shows(b"[rank 0] " + shown + b"\n" if shown else b"")


def test_a_bar_is_a_line_each_ten_seconds(node: Node) -> None:
    """The first line comes after ten seconds, and none while the bar does not move."""
    draw = partial(bar, node)

    draw(100, b"1%")
    draw(105, b"2%")
    draw(110, b"3%", b"3%")
    draw(115, b"4%")
    draw(119, b"5%")
    draw(120, b"5%", b"5%")
    draw(125, b"5%")
    draw(131, b"5%")
    draw(132, b"6%", b"6%")


def test_a_short_bar_is_not_a_line_of_its_own(node: Node) -> None:
    """Its end is a line anyway; the next bar begins anew."""
    bar(node, 100, b"1%")
    node.now = 109
    node.prints(0, b"\n")
    node.shows(b"[rank 0] 1%\n")
    bar(node, 110, b"2%")

    assert node.stream(0).due == 120


def test_nothing_is_due_while_no_bar_moves(node: Node) -> None:
    """Nothing wakes the relay then."""
    stream = node.stream(0)
    assert stream.due == NOT_DUE

    bar(node, 100, b"1%")
    assert stream.due == 110

    bar(node, 110, b"1%", b"1%")
    assert stream.due == NOT_DUE

    node.prints(0, b"\n")
    node.at(111)
    assert stream.due == NOT_DUE


def test_a_bar_that_was_removed_is_not_a_line(node: Node) -> None:
    """Tqdm overwrites it with blanks."""
    bar(node, 100, b"     ")
    bar(node, 200, b"     ")

    assert node.stream(0).due == NOT_DUE


def test_lines_with_any_of_the_texts_have_their_prefix(node: Node, tmp_path: Path) -> None:
    """Each is written once, however many texts it contains, and whatever these mean to a regex."""
    path = tmp_path / "run/filtered_stdout.log"
    node.to = Destination(None, filtered=path, filters=("loss", "e.g.", "1,000"))

    node.prints(3, b"loss: 1 loss: 2\nnothing\neggs\ne.g. this\n\nat 1,000")
    node.prints(3, b"\nthe last loss\n")

    assert node.written(path) == (
        b"[rank 3] loss: 1 loss: 2\n[rank 3] e.g. this\n[rank 3] at 1,000\n[rank 3] the last loss\n"
    )


def test_ranks_share_a_file_of_chosen_lines(node: Node, tmp_path: Path) -> None:
    """Each line is whole."""
    node.to = Destination(None, filtered=tmp_path / "filtered", filters=("loss",))

    for rank in range(3):
        node.prints(rank, b"a loss\n")

    lines = node.written(tmp_path / "filtered").splitlines()
    assert sorted(lines) == [f"[rank {rank}] a loss".encode() for rank in range(3)]


def test_there_is_a_file_even_if_nothing_matched(node: Node, tmp_path: Path) -> None:
    """It is empty."""
    node.to = Destination(None, filtered=tmp_path / "filtered", filters=("loss",))

    node.prints(0, b"nothing\n")

    assert node.written(tmp_path / "filtered") == b""


def test_a_bar_in_a_pipe_is_looked_at_as_its_lines_are(node: Node, tmp_path: Path) -> None:
    """The line that it is every ten seconds may contain a text."""
    node.to = Destination(None, filtered=tmp_path / "filtered", filters=("%",))

    bar(node, 100, b"1%")
    bar(node, 110, b"2%", b"2%")

    assert node.written(tmp_path / "filtered") == b"[rank 0] 2%\n"


@given(
    lines=st.lists(st.text("ab\r"), max_size=9),
    texts=st.lists(st.text("ab", min_size=1), min_size=1),
)
def test_it_is_a_search_line_by_line(lines: list[str], texts: list[str]) -> None:
    """Torchrun also looks at each line for each text."""
    found = [line for line in lines if any(text in line for text in texts)]

    text = TextFilter(b"", texts).matching("".join(f"{line}\n" for line in lines).encode())

    assert text.decode() == "".join(f"{line}\n" for line in found)


def test_the_piece_of_a_long_line_is_ended() -> None:
    """Other ranks' lines follow it."""
    assert TextFilter(b"", ["b"]).matching(b"a\nabc") == b"abc\n"
