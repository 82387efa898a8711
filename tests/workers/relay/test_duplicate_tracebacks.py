"""Equal tracebacks of several ranks, which the screen shows once."""

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


class Shown:
    """Ranks that print to one screen, while a test sets the time."""

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

    def _show(self, prefix: bytes, text: bytes) -> None:
        for line in text.splitlines(keepends=True):
            self.text += (prefix + line).decode()

    def prints(self, rank: int, text: bytes) -> None:
        if passed := self.ranks[rank].feed(text):
            self._show(self.ranks[rank].prefix, passed)

    def all_print(self, text: bytes) -> None:
        for rank in range(len(self.ranks)):
            self.prints(rank, text)

    def passes(self, seconds: float) -> None:
        """Let the time pass in steps of 10 ms."""
        for _ in range(round(seconds * 100)):
            self.now += 0.01
            for each in self.ranks:
                each.update(self.now)
            self.shared.update(self.now)

    def shows(self, *lines: str) -> None:
        """Assert that this was shown since the last time."""
        shown, self.text = self.text, ""
        assert shown.splitlines() == list(lines)

    def shows_whole(self, rank: int, text: bytes, *more: str) -> None:
        self.shows(*(f"[rank {rank}] {line}" for line in text.decode().splitlines()), *more)


@pytest.mark.parametrize("message", [b"ValueError: no\n", b"ValueError: no\n  twice\nmore\n"])
@pytest.mark.parametrize("before", [FRAMES, CAUSE + FRAMES])
def test_eight_equal_ones(before: bytes, message: bytes) -> None:
    """Causes, and all lines of a message, belong to it."""
    node = Shown()

    node.all_print(before + message)
    node.shows()
    node.passes(1)

    node.shows_whole(0, before + message, "[ranks 1-7] the same traceback as rank 0")


def test_one_with_another_message() -> None:
    """It has the same frames: the message alone is new."""
    node = Shown()

    for rank in range(8):
        number = 3 if rank == 3 else 0
        node.prints(rank, FRAMES + b"ValueError: of %d\nmore\n" % number)
    node.passes(1)

    node.shows_whole(
        0,
        FRAMES + b"ValueError: of 0\nmore\n",
        "[ranks 1-2,4-7] the same traceback as rank 0",
        "[rank 3] the same traceback as rank 0, but:",
        "[rank 3] ValueError: of 3",
        "[rank 3] more",
    )


def test_other_frames_are_printed() -> None:
    """A rank that fails elsewhere is what people look for."""
    node = Shown(2)
    other = FRAMES.replace(b"line 3", b"line 4") + b"ValueError: no\n"

    node.prints(0, FRAMES + b"ValueError: no\n")
    node.prints(1, other)
    node.passes(0.5)

    whole = (FRAMES + b"ValueError: no\n").decode().splitlines()
    node.shows(
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
def test_what_differs_by_rank_in_each_line(put_in) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """An excepthook of torch puts the rank before each line."""
    node = Shown(2)

    for rank in (0, 1):
        for line in (FRAMES + b"ValueError: no").splitlines():
            node.prints(rank, put_in(rank, line) + b"\n")
    node.passes(1)

    assert node.text.count("Traceback") == 1
    assert node.text.endswith("\n[rank 1] the same traceback as rank 0\n")


def test_one_that_comes_slowly_is_whole() -> None:
    """On a busy machine Python takes long to read the sources; after the exception it is quiet."""
    node = Shown(1)

    for line in FRAMES.splitlines(keepends=True):
        node.prints(0, line)
        node.passes(0.6)
    node.shows()
    node.prints(0, b"ValueError: no\n")
    node.passes(0.15)
    node.shows()
    node.passes(0.06)

    node.shows_whole(0, FRAMES + b"ValueError: no\n")


def test_one_that_never_ends_is_shown_after_two_seconds() -> None:
    """So is one of which much is printed; what follows is not held."""
    node = Shown(1)
    deep = b'  File "train.py", line 9, in f\n' * 3000

    node.prints(0, FRAMES)
    node.passes(1.98)
    node.shows()
    node.passes(0.03)
    node.shows_whole(0, FRAMES)
    node.prints(0, b"    more\n")
    node.shows("[rank 0]     more")

    node.prints(0, b"before\n" + FRAMES + deep + b"ValueError: no\n")

    node.shows_whole(0, b"before\n" + FRAMES + deep + b"ValueError: no\n")


def test_only_while_the_first_is_in_sight() -> None:
    """After ten seconds, in another attempt, and of the rank itself, it is printed again."""
    node = Shown(2)
    text = FRAMES + b"ValueError: no\n"

    for seconds in (0.5, 10.1, 0.0):
        node.passes(seconds)
        node.prints(0, text)
        node.passes(0.5)
        node.shows_whole(0, text)
    node.passes(10.1)
    node.prints(1, text)
    node.passes(0.5)
    node.shows_whole(1, text)
    node.shared.forget()
    node.prints(0, text)
    node.passes(0.5)
    node.shows_whole(0, text)


def test_the_end_of_a_rank_waits_for_nothing() -> None:
    """Its traceback is whole then; who has printed the same is said before the next notice."""
    node = Shown(2)
    text = FRAMES + b"ValueError: no\n"

    for rank in (0, 1):
        node.prints(rank, text)
        node.ranks[rank].flush()
    node.shows_whole(0, text)
    node.shared.report_duplicates()

    node.shows("[rank 1] the same traceback as rank 0")


def test_ranks_that_are_not_shown() -> None:
    """Nothing is like what nobody has seen."""
    node = Shown(2)
    node.is_shown = False

    assert node.ranks[0].feed(FRAMES) == FRAMES
    node.is_shown = True
    node.prints(1, FRAMES + b"ValueError: no\n")
    node.passes(0.5)

    node.shows_whole(1, FRAMES + b"ValueError: no\n")


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
def test_one_prefix_for_several(prefix: str, expected: list[str]) -> None:
    """Where they differ in one number, which is the rank."""
    node = Shown(3, prefix)

    node.all_print(FRAMES + b"ValueError: no\n")
    node.passes(1)

    same = re.findall("(?m)^(.*)the same traceback as rank 0$", node.text)
    assert same == expected


def test_any_number_of_them_needs_no_memory() -> None:
    """Each may differ, and each message, too."""
    node = Shown(2)

    for number in range(1000):
        node.prints(0, FRAMES + b'  File "%d.py"\nValueError: no\n' % number)
        node.ranks[0].flush()
        node.prints(1, FRAMES + b'  File "%d.py"\nValueError: %d\n' % (number, number))
        node.ranks[1].flush()
        node.shared.update(node.now)

    assert node.text.count("Traceback") == 1000
    assert node.text.count("but:") > 900
