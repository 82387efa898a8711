"""What is left out of the screen after Ctrl-C, and what must not be."""

from tests.workers.door import streams

TRACEBACK = (
    b"Traceback (most recent call last):\n"
    b'  File "train.py", line 3, in <module>\n'
    b"    time.sleep(1)\n"
)


COLOURED = (
    b"Traceback (most recent call last):\n"
    b'  File \x1b[35m"train.py"\x1b[0m, line \x1b[35m3\x1b[0m, in \x1b[35m<module>\x1b[0m\n'
    b"    time.\x1b[31msleep\x1b[0m(1)\n"
    b"\x1b[1;35mKeyboardInterrupt\x1b[0m\n"
)
"""As Python 3.13 prints it with FORCE_COLOR."""


def armed() -> streams.InterruptFilter:
    """Return a filter as it is after Ctrl-C."""
    interrupts = streams.InterruptFilter()
    interrupts.armed = True
    return interrupts


def test_nothing_is_left_out_before_ctrl_c() -> None:
    """A script may print a KeyboardInterrupt of its own."""
    lines = TRACEBACK + b"KeyboardInterrupt\n"

    assert streams.InterruptFilter().feed(lines) == lines


def test_a_traceback_of_the_interrupt_is_left_out() -> None:
    """The lines around it are shown, however the stream was cut."""
    interrupts = armed()
    shown = interrupts.feed(b"step 7\n" + TRACEBACK[:40].partition(b"\n")[0] + b"\n")
    shown += interrupts.feed(TRACEBACK.partition(b"\n")[2] + b"KeyboardInterrupt\nsaved\n")

    assert shown + interrupts.finish() == b"step 7\nsaved\n"


def test_another_traceback_is_shown() -> None:
    """Saving a checkpoint can fail, and the user must see that."""
    lines = TRACEBACK + b"OSError: No space left on device\n"

    assert armed().feed(lines) == lines


def test_what_is_held_back_at_the_end_is_shown() -> None:
    """The output of a worker killed in the middle of its traceback is kept."""
    interrupts = armed()

    assert interrupts.feed(TRACEBACK) == b""
    assert interrupts.finish() == TRACEBACK


def test_no_more_than_a_bounded_part_is_held_back() -> None:
    """An indented text without end is no traceback."""
    line = b" " * 999 + b"\n"
    lines = TRACEBACK + line * (streams.LONGEST_TRACEBACK // len(line) + 1)

    assert armed().feed(lines)


def test_a_coloured_traceback_of_the_interrupt_is_left_out() -> None:
    assert armed().feed(COLOURED + b"\x1b[1msaved\x1b[0m\n") == b"\x1b[1msaved\x1b[0m\n"
