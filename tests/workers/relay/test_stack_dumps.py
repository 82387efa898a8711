"""faulthandler's stacks are separated from a worker's own lines."""

import subprocess
import sys
from itertools import pairwise
from textwrap import dedent

import pytest
from clusterrun.workers.relay.lines import StackDumpFilter
from hypothesis import given
from hypothesis import strategies as st

DUMP = b"""\
Thread 0x00007f3fb7fff700 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/x/loader.py", line 7 in fetch

Current thread 0x00007f40b8f2c740 (most recent call first):
  File "/x/train.py", line 12 in step
  File "/x/train.py", line 40 in <module>
"""

STACK = """\
Thread (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/x/loader.py", line 7 in fetch

Current thread (most recent call first):
  File "/x/train.py", line 12 in step
  File "/x/train.py", line 40 in <module>"""

STACK_OF_MAIN = "\n".join(STACK.splitlines()[-2:])

OURS = b"""\
  File "/x/clusterrun/workers/fork_server/__main__.py", line 35 in <module>
"""

TRACEBACK = b"""\
Traceback (most recent call last):
  File "/x/train.py", line 12, in step
    raise ValueError

ValueError
"""


def armed() -> StackDumpFilter:
    dumps = StackDumpFilter()
    dumps.arm()
    return dumps


SINGLE = DUMP.partition(b"\n\n")[2]
TORN = DUMP.replace(b"\n  File", b"\nloss 0.5\n  File", 1)
BAR = b" 50%|#####     |"


@pytest.mark.parametrize(
    ("text", "shown", "stack", "has_own_lines"),
    [
        pytest.param(b"before\n" + DUMP + b"after\n", b"before\nafter\n", STACK, True, id="alone"),
        pytest.param(DUMP + OURS, b"", STACK, False, id="without the launcher's frame"),
        pytest.param(SINGLE, b"", STACK_OF_MAIN, False, id="one thread has no heading"),
        pytest.param(TORN, b"loss 0.5\n", STACK, True, id="lines of other threads stay"),
        # It has no newline, and was printed before.
        pytest.param(BAR + DUMP, BAR + b"\n", STACK, False, id="a progress bar before it stays"),
    ],
)
def test_dump_is_taken_out(text: bytes, shown: bytes, stack: str, *, has_own_lines: bool) -> None:
    """Without addresses, which differ by process; nothing else is taken out."""
    dumps = armed()

    assert dumps.feed(text) == shown
    assert (dumps.stack, dumps.found_own_lines) == (stack, has_own_lines)


@pytest.mark.parametrize("own", [b"\n", b"  indented\n", b"Thread 7 starts\n", TRACEBACK])
def test_similar_lines_of_the_worker_stay(own: bytes) -> None:
    dumps = armed()

    shown = dumps.feed(own) + dumps.feed(DUMP) + dumps.feed(own) + dumps.disarm()

    assert (shown, dumps.stack) == (own + own, STACK)


def test_dump_stays_unless_armed() -> None:
    """Another program may have requested it."""
    assert StackDumpFilter().feed(DUMP) == DUMP


def test_endless_stack_is_cut() -> None:
    """None of it is shown."""
    dumps = armed()

    shown = dumps.feed(DUMP + b'  File "/x/deep.py", line 3 in again\n' * 10_000)

    assert shown == b""
    assert len(dumps.stack) < 16 << 10
    assert dumps.stack.startswith(STACK)


@given(st.lists(st.sampled_from([DUMP, TRACEBACK, b"loss\n", b"\n"]), max_size=6), st.data())
def test_result_does_not_depend_on_how_lines_are_fed(
    parts: list[bytes], data: st.DataObject
) -> None:
    text = b"".join(parts)
    lines = text.splitlines(keepends=True)
    whole, pieces = armed(), armed()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lines)), max_size=5)))
    ends = [0, *cuts, len(lines)]

    shown = b"".join(pieces.feed(b"".join(lines[start:end])) for start, end in pairwise(ends))

    assert shown + pieces.disarm() == whole.feed(text) + whole.disarm()
    assert pieces.stack == whole.stack


def test_real_dump_of_this_python() -> None:
    """With a thread that has ended and one that runs."""
    program = """
        import faulthandler, signal, threading
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        faulthandler.register(signal.SIGQUIT, file=2, all_threads=True, chain=False)
        signal.raise_signal(signal.SIGQUIT)
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(program)], capture_output=True, timeout=60, check=True
    )
    dumps = armed()

    assert dumps.feed(done.stderr) == b""
    assert dumps.stack.count("most recent call first") == 2
    assert 'File "<string>", line 5 in <module>' in dumps.stack
