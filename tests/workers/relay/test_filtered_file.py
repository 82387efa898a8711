"""Lines that contain one of some texts, for a file of their own."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import wait_until
from tests.workers.door import (
    FilteredFile,
    LogWriter,
    any_of,
    lines_with,
)


class Filtered:
    """Files for filtered lines, and what is in one of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = LogWriter(lambda: None)

    def of(self, prefix: bytes, *texts: str) -> FilteredFile:
        return FilteredFile(self._writer.log(self.path, "rank 0"), prefix, texts)

    def text(self) -> bytes:
        """Return what is in the file once all is written."""
        wait_until(lambda: self._writer.idle)
        return self.path.read_bytes()


@pytest.fixture
def filtered(tmp_path: Path) -> Filtered:
    return Filtered(tmp_path / "run/filtered_stdout.log")


def test_lines_with_any_of_the_texts_have_their_prefix(filtered: Filtered) -> None:
    """Each is written once, however many texts it contains, and whatever these mean to a regex."""
    file = filtered.of(b"[rank 3] ", "loss", "e.g.", "1,000")

    file.add(b"loss: 1 loss: 2\nnothing\negg\ne.g. this\n\nat 1,000")
    file.add(b"the last loss\n")

    assert filtered.text() == (
        b"[rank 3] loss: 1 loss: 2\n[rank 3] e.g. this\n[rank 3] at 1,000\n[rank 3] the last loss\n"
    )


def test_ranks_share_a_file(filtered: Filtered) -> None:
    """Each line is whole."""
    for number in range(3):
        filtered.of(f"[rank {number}] ".encode(), "loss").add(b"a loss\n")

    assert sorted(filtered.text().splitlines()) == [f"[rank {n}] a loss".encode() for n in range(3)]


def test_there_is_a_file_even_if_nothing_matched(filtered: Filtered) -> None:
    """It is empty."""
    filtered.of(b"", "loss").add(b"nothing\n")

    assert filtered.text() == b""


@given(
    lines=st.lists(st.text("ab\r"), max_size=9),
    texts=st.lists(st.text("ab", min_size=1), min_size=1),
)
def test_it_is_a_search_line_by_line(lines: list[str], texts: list[str]) -> None:
    """Torchrun also looks at each line for each text."""
    found = [line for line in lines if any(text in line for text in texts)]

    text = lines_with(any_of(texts), "".join(f"{line}\n" for line in lines).encode())

    assert text.decode() == "".join(f"{line}\n" for line in found)


def test_the_piece_of_a_long_line_is_ended() -> None:
    """Other ranks' lines follow it."""
    assert lines_with(any_of(["b"]), b"a\nabc") == b"abc\n"
