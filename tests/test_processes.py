"""A child that answers in time or is killed, whatever it does."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
from clusterrun import processes
from clusterrun.processes import (
    MAX_KEPT,
    TimeLimitedChild,
    describe_wait_status,
    forked,
    reap_child,
)

from tests.imports import imports
from tests.waiting import SECONDS_TO_ACT, text_of, wait_until
from tests.workers.interpreters import python_of

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.usefixtures("no_child_left")


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def hang() -> bytes:
    time.sleep(2 * SECONDS_TO_ACT)
    return b"never"


def fail() -> bytes:
    raise OSError("no library")


def crash() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b"never"


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


LACKS_PACKAGES = """
import sys, types

class Struct:
    def __init_subclass__(cls, **_):
        pass

# That of our interpreter is not for this one.
msgspec = sys.modules["msgspec"] = types.ModuleType("msgspec")
msgspec.Struct = Struct
"""

TRACED = """
import sys, threading

called = []

def trace(*event):
    called.append(event)
    return trace

def watched():
    return 1

def child():
    del called[:]
    watched()
    thread = threading.Thread(target=watched)
    thread.start()
    thread.join()
    # Not the events: the representation of one may cause more, without end.
    print(sys.gettrace(), sys.getprofile(), len(called), flush=True)

for start in (sys.settrace, sys.setprofile, threading.settrace, threading.setprofile):
    start(trace)
if sys.version_info >= (3, 12):
    monitoring, events = sys.monitoring, sys.monitoring.events
    for tool in range(6):
        monitoring.use_tool_id(tool, f"tool {tool}")
        for event in (events.PY_START, events.LINE, events.C_RAISE, events.CALL):
            monitoring.register_callback(tool, event, trace)
        monitoring.set_events(tool, events.PY_START | events.CALL)
        # As at a breakpoint.
        monitoring.set_local_events(tool, watched.__code__, events.LINE)
watched()
assert len(called) > (20 if sys.version_info >= (3, 12) else 2)
status = reap_child(forked(child), 30.0)
sys.settrace(None), sys.setprofile(None)
print(describe_wait_status(status)[0])
"""


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_nothing_traces_a_forked_child(version: str) -> None:
    """Neither it nor its threads, by any of Python's means."""
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} here")

    done = subprocess.run(
        [python, "-c", LACKS_PACKAGES + imports(forked, reap_child, describe_wait_status) + TRACED],
        env={**os.environ, "PYTHONPATH": str(ROOT / "launcher")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout == "None None 0\nexited with code 0\n", done.stderr


@pytest.mark.parametrize(
    ("child", "end"),
    [
        (lambda: None, "exited with code 0"),
        (fail, "exited with code 1"),
        (crash, "was killed by SIGKILL"),
    ],
)
def test_how_a_child_ended(child: Callable[[], object], end: str) -> None:
    status = reap_child(forked(child), SECONDS_TO_ACT)

    assert status is not None
    assert describe_wait_status(status)[0] == end


LARGE = b"begins" + (1 << 17) * b"x"
MISSING = b"py-spy can't be executed: No such file or directory"


@pytest.mark.parametrize(
    ("ask", "seconds", "answer", "errors"),
    [
        pytest.param(lambda: LARGE, SECONDS_TO_ACT, LARGE, b"", id="larger than a pipe"),
        pytest.param(fail, SECONDS_TO_ACT, b"", b"", id="raises"),
        pytest.param(crash, SECONDS_TO_ACT, b"", b"", id="is killed"),
        pytest.param(lambda: sys.exit(3), SECONDS_TO_ACT, b"", b"", id="exits"),
        pytest.param(lambda: b"", SECONDS_TO_ACT, b"", b"", id="empty"),
        pytest.param(shell("kill -TERM $$; echo on"), SECONDS_TO_ACT, b"", b"", id="ended by TERM"),
        pytest.param(["/nowhere/py-spy"], SECONDS_TO_ACT, b"", MISSING, id="missing program"),
        pytest.param(hang, 0.2, b"", b"", id="hangs"),
    ],
)
def test_answer_of_a_child(
    ask: Callable[[], bytes] | list[str],
    seconds: float,
    answer: bytes,
    errors: bytes,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Nothing is printed: the caller knows another source, or says what is missing."""
    child = TimeLimitedChild(ask, seconds)

    assert child.wait() == answer
    assert (child.errors, child.is_late) == (errors, ask is hang)
    assert capfd.readouterr() == ("", "")


def test_what_a_program_prints() -> None:
    """With these variables alone, no input, and signals as by default, none blocked."""
    script = "read line; grep -E 'Sig(Blk|Ign)' /proc/self/status; env; echo wrong >&2"
    old = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        child = TimeLimitedChild(shell(script), SECONDS_TO_ACT, {"PWD": "/", "WHERE": "here"})
        lines = child.wait().decode().splitlines()
    finally:
        signal.signal(signal.SIGUSR1, old)

    assert lines[:2] == [f"{name}:\t{0:016x}" for name in ("SigBlk", "SigIgn")]
    assert "WHERE=here" in lines
    assert not [line for line in lines if line.startswith("HOME=")]
    assert child.errors == b"wrong\n"


def test_a_long_answer_is_cut_off() -> None:
    """It is read to its end; so are long errors."""
    child = TimeLimitedChild(shell("seq 200000; seq 200000 >&2; echo end >&2"), SECONDS_TO_ACT)

    answer = child.wait()

    assert len(answer) == len(child.errors) == MAX_KEPT
    assert answer == child.errors
    assert answer.startswith(b"1\n2\n3\n")
    assert not child.is_late


def test_a_program_that_prints_for_ever_is_not_waited_for() -> None:
    child = TimeLimitedChild(["/usr/bin/yes"], SECONDS_TO_ACT, now=0.0)
    began = time.monotonic()
    answers = [child.answer(now) for now in (0.0, 1.0, SECONDS_TO_ACT)]
    child.end()

    assert answers[:2] == [None, None]
    assert answers[2] is not None
    assert len(answers[2]) <= MAX_KEPT
    assert time.monotonic() - began < SECONDS_TO_ACT / 2
    assert child.is_late


def test_a_program_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    """That would hold the pipe open; what it has printed is there."""
    written = tmp_path / "written"
    script = f"sleep 1000 & echo $! >{written}; echo half; wait"
    child = TimeLimitedChild(shell(script), 10.0, {"PATH": "/usr/bin:/bin"}, now=0.0)
    started = int(text_of(written, "a process id"))
    answers = [child.answer(now) for now in (0.0, 10.0)]
    child.end()

    assert answers == [None, b"half\n"]
    assert child.is_late
    wait_until(lambda: has_ended(started), "the end of what it has started")


def test_the_time_of_another_clock() -> None:
    """``answer`` never waits; it says the same again."""
    child = TimeLimitedChild(hang, 10.0, now=100.0)
    answers = [child.answer(now) for now in (100.0, 109.9, 110.0, 111.0)]
    child.end()

    assert answers == [None, None, b"", b""]
    assert child.is_late


def test_the_pipe_wakes_who_waits() -> None:
    """It stays open until the end, so that a loop can forget it first."""
    child = TimeLimitedChild(lambda: b"here", SECONDS_TO_ACT)
    answer = wait_until(
        lambda: select.select([child], [], [], 1.0)[0] and child.answer(time.monotonic())
    )
    is_open = Path(f"/proc/self/fd/{child.fileno()}").exists()
    child.end()

    assert answer == b"here"
    assert is_open


@pytest.mark.parametrize("ask", [hang, shell("sleep 1000 & wait")])
def test_an_early_end(ask: Callable[[], bytes] | list[str]) -> None:
    """At once, even if the child has not begun."""
    child = TimeLimitedChild(ask, SECONDS_TO_ACT)
    began = time.monotonic()

    child.end()
    child.end()

    assert time.monotonic() - began < SECONDS_TO_ACT / 2
    assert not child.is_late


def test_an_end_that_is_not_waited_for() -> None:
    """Who is in a hurry may look later whether the child is gone, which a driver may hold."""
    child = TimeLimitedChild(hang, SECONDS_TO_ACT)
    began = time.monotonic()

    child.end(0.0)

    assert time.monotonic() - began < SECONDS_TO_ACT / 2
    wait_until(lambda: child.has_ended, "its end")


def test_a_program_that_lives_on_without_its_output(tmp_path: Path) -> None:
    """It has answered, and is ended all the same."""
    written = tmp_path / "written"
    script = f"echo $$ >{written}; echo here; exec >&- 2>&-; exec sleep 1000"
    child = TimeLimitedChild(shell(script), SECONDS_TO_ACT, {"PATH": "/usr/bin:/bin"})

    assert child.wait() == b"here\n"
    assert child.has_ended
    assert has_ended(int(written.read_text()))


def test_a_process_that_may_not_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a py-spy that has become root's by sudo: it is left to its own alarm."""

    def refuse(group: int, number: int) -> None:
        raise PermissionError(group, number)

    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", refuse)
        child = TimeLimitedChild(hang, 10.0, now=0.0)
        late = child.answer(10.0)
        child.end(0.0)

    assert late == b""
    assert not child.has_ended
    child.end()
    assert child.has_ended


def test_a_child_that_was_reaped_elsewhere() -> None:
    """As an agent does with all its children: its answer counts, and its number is left alone."""
    before = set(psutil.Process().children())
    child = TimeLimitedChild(lambda: b"here", SECONDS_TO_ACT)
    for each in set(psutil.Process().children()) - before:
        os.waitpid(each.pid, 0)

    assert child.answer(time.monotonic()) == b"here"
    child.end()


def test_it_holds_none_of_our_descriptors() -> None:
    """A child that hangs must hold open neither a connection nor our output."""
    reading, writing = os.pipe()

    def listed() -> bytes:
        return "\n".join(str(each.readlink()) for each in links()).encode()

    def links() -> list[Path]:
        return [each for each in Path("/proc/self/fd").iterdir() if each.exists()]

    child = TimeLimitedChild(listed, SECONDS_TO_ACT)
    answered = str(Path(f"/proc/self/fd/{child.fileno()}").readlink())
    held = child.wait().decode().splitlines()
    program = TimeLimitedChild(shell("echo /proc/self/fd/*"), SECONDS_TO_ACT)
    numbers = {Path(word).name for word in program.wait().decode().split()}
    os.close(reading)
    os.close(writing)

    assert held == ["/dev/null"] * 3 + [answered]
    assert not numbers & {str(reading), str(writing)}


def test_a_signal_to_both_is_handled_once() -> None:
    """Its signals are blocked: Ctrl-C reaches it, too, and our handlers must not run in it."""
    handled: list[int] = []
    old = signal.signal(signal.SIGUSR1, lambda *_: handled.append(os.getpid()))

    def signals_itself() -> bytes:
        os.kill(os.getpid(), signal.SIGUSR1)
        return repr(handled).encode()

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        answer = TimeLimitedChild(signals_itself, SECONDS_TO_ACT).wait()
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, old)

    assert answer == b"[]"
    assert handled == [os.getpid()]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.parametrize(
    "ask", ["hang", "['/bin/sh', '-c', 'echo $$ >written; mv written begun; exec sleep 1000']"]
)
def test_it_ends_with_the_process_that_started_it(ask: str, tmp_path: Path) -> None:
    """At once; SIGKILL leaves that process no time to end it."""
    code = f"""
        import os, signal, time
        def hang():
            with open("written", "w") as file:
                print(os.getpid(), file=file)
            os.rename("written", "begun")
            time.sleep(1000)
        TimeLimitedChild({ask}, 1000.0, {{"PATH": "/usr/bin:/bin"}})
        while not os.path.exists("begun"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    """

    subprocess.run(
        [sys.executable, "-c", imports(TimeLimitedChild) + dedent(code)],
        cwd=tmp_path,
        timeout=SECONDS_TO_ACT,
        check=False,
    )

    child = int((tmp_path / "begun").read_text())
    wait_until(lambda: has_ended(child), "the child's end")


@pytest.mark.parametrize("ask", [hang, ["/bin/sleep", "1000"]])
def test_its_own_alarm_ends_it(
    ask: Callable[[], bytes] | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that started it may be stopped by Ctrl-Z."""
    monkeypatch.setattr(processes, "ALARM_GRACE_SECONDS", 0.1)
    child = TimeLimitedChild(ask, 0.1)

    ended = select.select([child], [], [], SECONDS_TO_ACT)[0]
    answer = child.answer(0.0)
    child.end()

    assert ended == [child]
    assert answer == b""
