"""Writes to shared outputs, which block neither the launcher nor other writers."""

import fcntl
import os
import pty
import select
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterrun import descriptor_output

from tests.workers.relay.relay_bench import socket_pair

MUCH = bytes(range(256)) * 4000

Ends = tuple[int, int]


def raw_terminal() -> Ends:
    """Return a terminal that passes all bytes unchanged: the reader's side, and the launcher's."""
    reader, writer = pty.openpty()
    tty.setraw(writer)
    return reader, writer


@pytest.fixture(params=[os.pipe, socket_pair, raw_terminal])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Return a read end and a write end of each kind of standard output."""
    reader, writer = request.param()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def read_all(reader: int, output: descriptor_output.DescriptorOutput) -> bytes:
    """Read what arrives while ``output`` is flushed whenever it can be."""
    received = b""
    while output.waiting or select.select([reader], [], [], 0.1)[0]:
        readable, _, _ = select.select([reader], [output], [], 5)
        assert readable or output.waiting
        if readable:
            received += os.read(reader, 1 << 16)
        output.flush()
    return received


def test_slow_reader_blocks_no_writer_and_loses_nothing(ends: Ends) -> None:
    reader, writer = ends
    output = descriptor_output.open_output(writer)

    output.write(MUCH)
    output.flush()
    waiting = output.waiting

    assert waiting > 0
    assert read_all(reader, output) == MUCH


def test_open_file_description_stays_blocking(ends: Ends) -> None:
    """A shell whose terminal were non-blocking would fail at its next command."""
    _, writer = ends

    descriptor_output.open_output(writer)

    assert not fcntl.fcntl(writer, fcntl.F_GETFL) & os.O_NONBLOCK


def test_pipe_of_another_user_blocks_no_writer() -> None:
    """It can not be opened again (sudo), so small pieces are written when there is room."""
    reader, writer = os.pipe()
    os.fchmod(writer, 0)
    output = open_output_as_nobody(writer)

    output.write(MUCH)
    output.flush()

    assert output.fileno() == writer
    assert output.waiting > 0
    assert read_all(reader, output) == MUCH
    os.close(reader)
    os.close(writer)


def open_output_as_nobody(writer: int) -> descriptor_output.DescriptorOutput:
    """Open the output as a user without permission to open that pipe."""
    if os.geteuid() != 0:
        return descriptor_output.open_output(writer)
    os.seteuid(65534)
    try:
        return descriptor_output.open_output(writer)
    finally:
        os.seteuid(0)


def test_closed_reader_is_a_failure() -> None:
    """Later output is dropped."""
    reader, writer = os.pipe()
    output = descriptor_output.open_output(writer)
    os.close(reader)

    output.write(MUCH)
    output.flush()
    output.write(MUCH)

    assert isinstance(output.failure, BrokenPipeError)
    assert output.waiting == 0
    os.close(writer)


def test_reader_closed_before_opening_is_a_failure() -> None:
    """Such a pipe can not even be opened again."""
    reader, writer = os.pipe()
    os.close(reader)
    output = descriptor_output.open_output(writer)

    output.write(b"x")
    output.flush()

    assert isinstance(output.failure, BrokenPipeError)
    os.close(writer)


def test_partial_write_is_not_repeated() -> None:
    received = bytearray()

    def write_a_bit(data: bytearray) -> int:
        received.extend(data[:7])
        return len(data[:7])

    output = descriptor_output.DescriptorOutput(0, write_a_bit)
    output.write(b"hello ")
    output.write(b"world, hello ")
    output.flush()
    output.write(b"moon")
    output.flush()

    assert bytes(received) == b"hello world, hello moon"


def test_write_within_waits_for_a_stopped_reader(ends: Ends) -> None:
    """After that time the line is dropped; a reader that continues in time gets it whole."""
    reader, writer = ends
    full = descriptor_output.open_output(writer)
    full.write(MUCH)
    # A terminal passes on what it holds a moment later.
    while select.select([], [full], [], 0.1)[1]:
        full.flush()
    before = time.monotonic()

    descriptor_output.write_within(writer, b"too late", seconds=0.05)
    waited = time.monotonic() - before
    received = read_all(reader, full)
    descriptor_output.write_within(writer, b"in time", seconds=10)

    assert 0.04 < waited < 5
    assert received == MUCH
    assert os.read(reader, 100) == b"in time"


def test_file_is_written_at_the_offset_of_its_owner(tmp_path: Path) -> None:
    """``2> file``: what the shell writes before and after stays."""
    path = tmp_path / "err.txt"
    with path.open("wb", buffering=0) as file:
        file.write(b"before\n")
        descriptor_output.write_within(file.fileno(), b"clusterrun: error\n", seconds=10)
        file.write(b"after\n")

    assert path.read_text() == "before\nclusterrun: error\nafter\n"
