"""What several hosts print, on one output."""

from tests.ssh.door import (
    LONGEST_LINE,
    DescriptorOutput,
    Kind,
    MergedOutput,
)


class Printed:
    """An output that keeps what is written."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self.merged = MergedOutput(
            DescriptorOutput(1, self._writer(self.out)), DescriptorOutput(2, self._writer(self.err))
        )

    @staticmethod
    def _writer(kept: bytearray):  # type: ignore[no-untyped-def]  # noqa: ANN205
        def write(data: bytearray) -> int:
            kept.extend(data)
            return len(data)

        return write


def test_lines_stay_whole() -> None:
    """What a host has begun waits for its end."""
    printed = Printed()

    printed.merged.take(0, Kind.OUT, b"one\ntw")
    printed.merged.take(1, Kind.OUT, b"uno\n")
    printed.merged.take(0, Kind.OUT, b"o\nthree")
    printed.merged.finish(0)

    assert printed.out == b"one\nuno\ntwo\nthree\n"


def test_a_line_without_end_is_printed() -> None:
    """In parts: it must not fill the memory."""
    printed = Printed()

    printed.merged.take(0, Kind.OUT, b"x" * (LONGEST_LINE + 1))

    assert len(printed.out) == LONGEST_LINE + 1


def test_our_own_lines_are_printed_once() -> None:
    """Those of several hosts that are equal, with the hints below them."""
    printed = Printed()
    error = b"clusterrun: error: no\n  type this\n"

    for rank in range(3):
        printed.merged.take(rank, Kind.ERR, error)
    printed.merged.take(1, Kind.ERR, b"clusterrun: error: no, really\n  type that\n")

    assert printed.err == error + b"clusterrun: error: no, really\n  type that\n"


def test_lines_of_workers_are_all_printed() -> None:
    """Even equal ones, and those that look like a hint."""
    printed = Printed()

    for rank in range(2):
        printed.merged.take(rank, Kind.ERR, b"loss\n  indented\n")
        printed.merged.take(rank, Kind.OUT, b"clusterrun: \n")

    assert printed.err == b"loss\n  indented\n" * 2
    assert printed.out == b"clusterrun: \n" * 2
