"""Equal tracebacks of several ranks are printed once."""

import re

import pytest
from clusterrun.workers.relay import duplicate_tracebacks

FRAMES = (
    b'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step(batch)\n'
)
CAUSE = (
    FRAMES + b"KeyError: 'x'\n\n"
    b"The above exception was the direct cause of the following exception:\n\n"
)


class Ranks:
    """Ranks that print to one screen; the test sets the time."""

    def __init__(self, ranks: int = 8, prefix: str = "[rank {}] ") -> None:
        self.now = 0.0
        self.text = ""
        self.is_shown = True
        self.shared = duplicate_tracebacks.Tracebacks(lambda: self.now)
        self.ranks = [
            duplicate_tracebacks.TracebackBuffer(
                self.shared,
                f"rank {rank}",
                prefix.format(rank).encode(),
                self._show,
                lambda: self.is_shown,
            )
            for rank in range(ranks)
        ]

    def _show(self, text: bytes, prefix: bytes) -> None:
        for line in text.splitlines(keepends=True):
            self.text += (prefix + line).decode()

    def print(self, rank: int, text: bytes) -> None:
        if passed := self.ranks[rank].feed(text):
            self._show(passed, self.ranks[rank].prefix)

    def print_by_all(self, text: bytes) -> None:
        for rank in range(len(self.ranks)):
            self.print(rank, text)

    def pass_time(self, seconds: float) -> None:
        """Let time pass in steps of 10 ms."""
        for _ in range(round(seconds * 100)):
            self.now += 0.01
            for each in self.ranks:
                each.update(self.now)
            self.shared.update(self.now)

    def assert_shown(self, *lines: str) -> None:
        """Assert that exactly this was shown since the last call."""
        shown, self.text = self.text, ""
        assert shown.splitlines() == list(lines)

    def assert_shown_whole(self, rank: int, text: bytes, *more: str) -> None:
        self.assert_shown(*(f"[rank {rank}] {line}" for line in text.decode().splitlines()), *more)


@pytest.mark.parametrize("message", [b"ValueError: no\n", b"ValueError: no\n  twice\nmore\n"])
@pytest.mark.parametrize("before", [FRAMES, CAUSE + FRAMES])
def test_same_traceback_of_eight_ranks_is_printed_once(before: bytes, message: bytes) -> None:
    """Chained causes and multi-line messages belong to the traceback."""
    node = Ranks()

    node.print_by_all(before + message)
    node.assert_shown()
    node.pass_time(1)

    node.assert_shown_whole(0, before + message, "[ranks 1-7] the same traceback as rank 0")


def test_same_frames_with_another_message_print_the_message() -> None:
    node = Ranks()

    for rank in range(8):
        number = 3 if rank == 3 else 0
        node.print(rank, FRAMES + b"ValueError: of %d\nmore\n" % number)
    node.pass_time(1)

    node.assert_shown_whole(
        0,
        FRAMES + b"ValueError: of 0\nmore\n",
        "[ranks 1-2,4-7] the same traceback as rank 0",
        "[rank 3] the same traceback as rank 0, but:",
        "[rank 3] ValueError: of 3",
        "[rank 3] more",
    )


def test_other_frames_are_printed_whole() -> None:
    """A rank that fails elsewhere is often the cause."""
    node = Ranks(2)
    other = FRAMES.replace(b"line 3", b"line 4") + b"ValueError: no\n"

    node.print(0, FRAMES + b"ValueError: no\n")
    node.print(1, other)
    node.pass_time(0.5)

    whole = (FRAMES + b"ValueError: no\n").decode().splitlines()
    node.assert_shown(
        *(f"[rank 0] {line}" for line in whole),
        *(f"[rank 1] {line}" for line in other.decode().splitlines()),
    )


@pytest.mark.parametrize(
    "put_in",
    [
        lambda rank, line: b"[rank%d]: %b" % (rank, line),
        lambda rank, line: b"\x1b[1;3%dm%b\x1b[0m" % (rank, line),
    ],
    ids=["torch's rank", "colours"],
)
def test_ranks_in_each_line_are_ignored(put_in) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Torch's excepthook puts the rank before each line."""
    node = Ranks(2)

    for rank in (0, 1):
        for line in (FRAMES + b"ValueError: no").splitlines():
            node.print(rank, put_in(rank, line) + b"\n")
    node.pass_time(1)

    assert node.text.count("Traceback") == 1
    assert node.text.endswith("\n[rank 1] the same traceback as rank 0\n")


def test_traceback_printed_slowly_is_whole() -> None:
    """On a busy machine, Python takes long to read the source lines; nothing follows the exception."""
    node = Ranks(1)

    for line in FRAMES.splitlines(keepends=True):
        node.print(0, line)
        node.pass_time(0.6)
    node.assert_shown()
    node.print(0, b"ValueError: no\n")
    node.pass_time(0.15)
    node.assert_shown()
    node.pass_time(0.06)

    node.assert_shown_whole(0, FRAMES + b"ValueError: no\n")


def test_endless_traceback_is_printed_after_two_seconds() -> None:
    """So is a very long one; lines after it are not buffered."""
    node = Ranks(1)
    deep = b'  File "train.py", line 9, in f\n' * 3000

    node.print(0, FRAMES)
    node.pass_time(1.98)
    node.assert_shown()
    node.pass_time(0.03)
    node.assert_shown_whole(0, FRAMES)
    node.print(0, b"    more\n")
    node.assert_shown("[rank 0]     more")

    node.print(0, b"before\n" + FRAMES + deep + b"ValueError: no\n")

    node.assert_shown_whole(0, b"before\n" + FRAMES + deep + b"ValueError: no\n")


def test_traceback_is_repeated_once_the_first_is_out_of_sight() -> None:
    """It is also repeated in another attempt, and by the same rank."""
    node = Ranks(2)
    text = FRAMES + b"ValueError: no\n"

    for seconds in (0.5, 10.1, 0.0):
        node.pass_time(seconds)
        node.print(0, text)
        node.pass_time(0.5)
        node.assert_shown_whole(0, text)
    node.pass_time(10.1)
    node.print(1, text)
    node.pass_time(0.5)
    node.assert_shown_whole(1, text)
    node.shared.forget()
    node.print(0, text)
    node.pass_time(0.5)
    node.assert_shown_whole(0, text)


def test_traceback_is_printed_when_the_rank_ends() -> None:
    """Duplicates are reported before the next notice."""
    node = Ranks(2)
    text = FRAMES + b"ValueError: no\n"

    for rank in (0, 1):
        node.print(rank, text)
        node.ranks[rank].flush()
    node.assert_shown_whole(0, text)
    node.shared.report_duplicates()

    node.assert_shown("[rank 1] the same traceback as rank 0")


def test_hidden_rank_does_not_count_as_first() -> None:
    node = Ranks(2)
    node.is_shown = False

    assert node.ranks[0].feed(FRAMES) == FRAMES
    node.is_shown = True
    node.print(1, FRAMES + b"ValueError: no\n")
    node.pass_time(0.5)

    node.assert_shown_whole(1, FRAMES + b"ValueError: no\n")


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("[rank {} gpu-07] ", ["[ranks 1-2 gpu-07] "]),
        ("\x1b[36m[rank {}]\x1b[0m ", ["[ranks 1-2] "]),
        ("{}: ", ["1-2: "]),
        ("", [""]),
        ("[rank {0} of {0}] ", ["[rank 1 of 1] ", "[rank 2 of 2] "]),
    ],
)
def test_prefixes_that_differ_in_one_number_are_joined(prefix: str, expected: list[str]) -> None:
    node = Ranks(3, prefix)

    node.print_by_all(FRAMES + b"ValueError: no\n")
    node.pass_time(1)

    same = re.findall("(?m)^(.*)the same traceback as rank 0$", node.text)
    assert same == expected


def test_many_tracebacks_need_bounded_memory() -> None:
    """Frames and messages may all differ."""
    node = Ranks(2)

    for number in range(1000):
        node.print(0, FRAMES + b'  File "%d.py"\nValueError: no\n' % number)
        node.ranks[0].flush()
        node.print(1, FRAMES + b'  File "%d.py"\nValueError: %d\n' % (number, number))
        node.ranks[1].flush()
        node.shared.update(node.now)

    assert node.text.count("Traceback") == 1000
    assert node.text.count("but:") > 900
