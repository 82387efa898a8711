"""The relay as a process: what workers print to pipes reaches readers, files and the agent."""

import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.imports import imports
from tests.relay_bench import RelayBench, fill, read_until, read_while, relay_on
from tests.waiting import wait_until
from tests.workers.door import (
    Destination,
    HelperLost,
    LineStyle,
    LocalRank,
    OutputClosed,
    OutputEnded,
    OwnOutput,
    RelayClient,
    WorkerOutput,
)


@dataclass
class Reader:
    """Two pipes that are the launcher's stdout and stderr, and their readers' ends."""

    stdout: int
    stderr: int
    to_stdout: int
    to_stderr: int


@pytest.fixture
def reader() -> Iterator[Reader]:
    (out, to_out), (err, to_err) = os.pipe(), os.pipe()
    yield Reader(out, err, to_out, to_err)
    for descriptor in (out, err, to_out, to_err):
        with suppress(OSError):
            os.close(descriptor)


@pytest.fixture
def bench(reader: Reader) -> Iterator[RelayBench]:
    """Return a relay for several workers that prints to the reader's pipes."""
    with relay_on(reader.to_stdout, reader.to_stderr) as bench:
        yield bench


def test_lines_go_where_they_were_printed_to(bench: RelayBench, reader: Reader) -> None:
    """Standard output and error stay apart, each line with its rank."""
    printer = bench.open(3)

    os.write(printer.stdout, b"hello\nwor")
    os.write(printer.stderr, b"oops\n")
    os.write(printer.stdout, b"ld\n")

    assert read_until(reader.stdout, b"world\n") == b"[rank 3] hello\n[rank 3] world\n"
    assert read_until(reader.stderr, b"oops\n") == b"[rank 3] oops\n"


def test_many_writers_tear_and_lose_no_line(bench: RelayBench, reader: Reader) -> None:
    """Eight processes print in pieces as fast as they can, and every line arrives whole."""
    program = (
        "import sys\n"
        "for n in range(3000):\n"
        "    for piece in (f'{n} ', 'x' * (n % 200), '\\n'): sys.stdout.write(piece)\n"
        "    if n % 7 == 0: sys.stdout.flush()\n"
    )
    printers = [bench.open(rank) for rank in range(8)]
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=printer.stdout)
        for printer in printers
    ]
    for printer in printers:
        printer.close()

    text = read_while(reader.stdout, lambda text: text.count(b"\n") < 8 * 3000, seconds=60)
    for process in processes:
        process.wait(10)

    wanted = Counter(f"[rank {r}] {n} {'x' * (n % 200)}" for r in range(8) for n in range(3000))
    assert Counter(text.decode().splitlines()) == wanted


def test_a_progress_bar_in_a_pipe_is_a_line_now_and_then(reader: Reader, tmp_path: Path) -> None:
    """So it is in log files, even if it does not end; its end is a line."""
    with relay_on(reader.to_stdout, reader.to_stderr, progress_seconds=0.1) as bench:
        printer = bench.open(0, logs=tmp_path)

        os.write(printer.stderr, b"\r 1%\r 2%")
        seen = read_until(reader.stderr, b" 2%\n")
        os.write(printer.stderr, b"\r 3%")
        seen += read_until(reader.stderr, b" 3%\n")
        os.write(printer.stderr, b"\r100%\n")
        printer.close()
        bench.finish(0)
        seen += read_until(reader.stderr, b"100%\n")

    assert seen == b"[rank 0]  2%\n[rank 0]  3%\n[rank 0] 100%\n"
    assert (tmp_path / "rank-0.err").read_bytes() == b" 2%\n 3%\n100%\n"


def test_a_single_worker_is_passed_through_as_it_prints(reader: Reader) -> None:
    """Without a prefix a prompt is shown at once, and no byte is changed."""
    with relay_on(reader.to_stdout, reader.to_stderr, prefix=False) as bench:
        printer = bench.open(0)

        os.write(printer.stdout, b"name? ")
        prompt = read_until(reader.stdout, b"? ")
        os.write(printer.stdout, b"\rbar\r\xff\x00")

        assert prompt == b"name? "
        assert read_until(reader.stdout, b"\x00") == b"\rbar\r\xff\x00"


@pytest.mark.parametrize("prefix", [True, False])
def test_a_hidden_worker_is_heard_but_not_shown(reader: Reader, *, prefix: bool) -> None:
    """The report has its last lines; the other stream is shown."""
    nowhere = Destination(None, shown=False)
    with relay_on(reader.to_stdout, reader.to_stderr, prefix=prefix) as bench:
        printer = bench.open(1, stderr_to=nowhere)
        os.write(printer.stderr, b"oops\nunfinished")
        os.write(printer.stdout, b"hello\n")
        printer.close()

        ended = bench.finish(1)
        bench.relay.say("the end")

        assert ended.tail == "oops\nunfinished"
        assert read_until(reader.stdout, b"hello\n").endswith(b"hello\n")
        assert read_until(reader.stderr, b"\n") == b"the end\n"


def test_a_reader_that_has_stopped_does_not_hold_up_a_hidden_worker(
    bench: RelayBench, tmp_path: Path
) -> None:
    """That worker's output does not go there; its file gets all."""
    log = tmp_path / "rank-1.out"
    shown, hidden = bench.open(0), bench.open(1, stdout_to=Destination(log, shown=False))

    fill(shown.stdout)
    for _ in range(20):
        os.write(hidden.stdout, b"y\n" * 30_000)
    hidden.close()
    bench.finish(1)
    wait_until(lambda: log.stat().st_size == 20 * 60_000)
    # What the shown worker printed stays unread.
    bench.relay.close(seconds=0)


def test_a_users_own_prefix(bench: RelayBench, reader: Reader) -> None:
    printer = bench.open(0, prefix="<0>")
    os.write(printer.stdout, b"a\nb\n")

    assert read_until(reader.stdout, b"b\n") == b"<0>a\n<0>b\n"


def test_the_end_of_a_worker_tells_its_tail(bench: RelayBench, reader: Reader) -> None:
    """The tail has the unfinished last line, with the newline that it lacks."""
    printer = bench.open(1)
    os.write(printer.stderr, b"Traceback\n\x1b[31mValueError: \xff")
    printer.close()

    ended = bench.finish(1)

    assert ended == OutputEnded(LocalRank(1), "Traceback\nValueError: \ufffd", "", 1.0)
    assert read_until(reader.stderr, b"\n[rank 1] \x1b[31mValueError: \xff\n")


def test_the_error_file_comes_with_it(bench: RelayBench, tmp_path: Path) -> None:
    """It is not decoded; a directory or a named pipe in its place causes no error and no wait."""
    file, fifo = tmp_path / "error.json", tmp_path / "fifo"
    file.write_text('{"message": "no"}', encoding="utf-8")
    os.mkfifo(fifo)
    for rank, path in enumerate((file, fifo, tmp_path, tmp_path / "missing")):
        bench.open(rank, error_file=path).close()

    errors = [bench.finish(rank).error_file for rank in range(4)]

    assert errors == ['{"message": "no"}', "", "", ""]


def test_a_grandchild_that_holds_the_pipe_holds_up_nothing(
    bench: RelayBench, reader: Reader
) -> None:
    """The end is answered though the pipe stays open, with all that was printed before."""
    printer = bench.open(0)
    os.write(printer.stderr, b"last words")

    ended = bench.finish(0)

    assert ended.tail == "last words"
    assert read_until(reader.stderr, b"words\n") == b"[rank 0] last words\n"
    assert has_no_reader(printer.stderr)


def has_no_reader(descriptor: int) -> bool:
    """Wait until a process that prints to a pipe would get SIGPIPE."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return poll.poll(5000) == [(descriptor, select.POLLERR)]


def test_a_rank_can_be_opened_again(bench: RelayBench, reader: Reader) -> None:
    """A restarted worker has the same rank and a tail of its own."""
    first = bench.open(0)
    os.write(first.stderr, b"first\n")
    first.close()
    bench.finish(0)
    second = bench.open(0)
    os.write(second.stderr, b"second\n")
    second.close()

    assert bench.finish(0).tail == "second"
    assert read_until(reader.stderr, b"second\n") == b"[rank 0] first\n[rank 0] second\n"


def test_a_worker_without_pipes_has_an_empty_end(bench: RelayBench) -> None:
    """Its streams are the terminal's own, or there never was such a worker."""
    assert bench.finish(5) == OutputEnded(LocalRank(5), "", "", 1.0)


def test_notices_stand_between_lines(bench: RelayBench, reader: Reader) -> None:
    """A notice tears no line, and may be several lines."""
    printer = bench.open(0)
    os.write(printer.stderr, b"begun ")
    bench.relay.say("clusterrun: one\n  two")
    seen = read_until(reader.stderr, b"two\n")
    os.write(printer.stderr, b"and ended\n")

    assert seen == b"clusterrun: one\n  two\n"
    assert read_until(reader.stderr, b"ended\n") == b"[rank 0] begun and ended\n"


def test_the_launcher_prints_before_it_knows_how_workers_look(
    bench: RelayBench, reader: Reader
) -> None:
    """The relay learns that with the first worker: here, that there is only one."""
    bench.relay.notice("the driver is slow")
    seen = read_until(reader.stderr, b"slow\n")
    bench.style = LineStyle(raw=True)
    os.write(bench.open(0).stdout, b"name? ")

    assert seen == b"clusterrun: the driver is slow\n"
    assert read_until(reader.stdout, b"? ") == b"name? "


def test_progress_is_collapsed_where_nobody_watches(bench: RelayBench, reader: Reader) -> None:
    """A pipe gets the last state of a bar, and no escape sequences of ours."""
    printer = bench.open(0)
    for step in range(101):
        os.write(printer.stderr, b"\r%d%%" % step)
    os.write(printer.stderr, b"\n")

    assert read_until(reader.stderr, b"\n") == b"[rank 0] 100%\n"


def test_a_stopped_reader_stops_the_worker_not_the_relay(bench: RelayBench, reader: Reader) -> None:
    """Printing blocks after some KiB, the agent is answered at once, and nothing is lost."""
    printer = bench.open(0)
    written = fill(printer.stdout)
    started = time.monotonic()
    bench.finish(7)
    answered = time.monotonic() - started
    text = read_while(reader.stdout, lambda text: text.count(b"y") < written // 2)

    assert text == b"[rank 0] y\n" * (written // 2)
    assert answered < 5
    assert written < 512 << 10


def test_a_closed_stdout_is_told_once(bench: RelayBench, reader: Reader) -> None:
    """``| head`` closes it; standard error is still written."""
    printer = bench.open(0)
    os.close(reader.to_stdout)
    os.close(reader.stdout)

    os.write(printer.stdout, b"nobody\n")
    event = bench.event()
    os.write(printer.stdout, b"nobody\n")
    os.write(printer.stderr, b"still here\n")

    assert event == OutputClosed(1.0)
    assert read_until(reader.stderr, b"here\n") == b"[rank 0] still here\n"
    assert not list(bench.relay.events(now=1.0))


def test_a_closed_stdout_ends_no_job_that_is_logged(
    bench: RelayBench, reader: Reader, tmp_path: Path
) -> None:
    """All of it is in the files: only the part for the screen is dropped."""
    printer = bench.open(0, logs=tmp_path)
    os.close(reader.stdout)

    os.write(printer.stdout, b"one\n")
    log = tmp_path / "rank-0.out"
    wait_until(lambda: log.exists() and log.read_bytes() == b"one\n")
    os.write(printer.stdout, b"two\n")
    os.write(printer.stdout, b"three\n")
    printer.close()
    event = bench.finish(0)

    assert isinstance(event, OutputEnded)
    wait_until(lambda: log.read_bytes() == b"one\ntwo\nthree\n")


def test_a_closed_stderr_is_no_matter(bench: RelayBench, reader: Reader) -> None:
    """Its lines are dropped, and the tail is kept."""
    printer = bench.open(0)
    os.close(reader.stderr)

    os.write(printer.stderr, b"nobody\n")
    os.write(printer.stdout, b"hello\n")

    assert read_until(reader.stdout, b"hello\n") == b"[rank 0] hello\n"
    assert bench.finish(0).tail == "nobody"


def test_both_streams_to_one_pipe_are_one_output(reader: Reader) -> None:
    """``2>&1`` keeps lines of both apart and whole, in the order in which they were read."""
    with relay_on(reader.to_stdout, reader.to_stdout) as bench:
        printer = bench.open(0)

        os.write(printer.stdout, b"x" * 100_000)
        long_line = read_until(reader.stdout, b"x" * 30_000)
        os.write(printer.stderr, b"oops\n")
        rest = read_until(reader.stdout, b"oops\n")

        text = long_line + rest
        assert text.endswith(b"\n[rank 0] oops\n")


def test_idle_means_asleep(bench: RelayBench, reader: Reader) -> None:
    """Nothing wakes a relay that has nothing to do, even if half a line waits."""
    printer = bench.open(0)
    os.write(printer.stdout, b"hello\nhalf a line")
    read_until(reader.stdout, b"hello\n")
    time.sleep(0.1)
    before, ran_before = switches(bench.relay.pid), ran_for(bench.relay.pid)

    time.sleep(1)

    assert switches(bench.relay.pid) - before <= 2
    # A process that never sleeps goes to sleep least of all.
    assert ran_for(bench.relay.pid) - ran_before < 0.1


def switches(pid: int) -> int:
    """Return how often a process went to sleep by itself."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    [line] = [line for line in status.splitlines() if line.startswith("voluntary")]
    return int(line.split()[1])


def ran_for(pid: int) -> float:
    """Return the seconds that a process has run on a CPU."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def test_signals_and_the_agents_descriptors_stay_outside(reader: Reader) -> None:
    """It has its own group and name, only the descriptors that it needs, and ignores signals."""
    stranger, kept_open = os.pipe()
    with relay_on(reader.to_stdout, reader.to_stderr) as bench:
        process = Path(f"/proc/{bench.relay.pid}")
        os.close(kept_open)
        wait_until(lambda: (process / "comm").read_text() != Path("/proc/self/comm").read_text())

        for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "TSTP", "TTIN", "TTOU", "PIPE"):
            os.kill(bench.relay.pid, signal.Signals[f"SIG{name}"])
        bench.finish(0)

        assert os.getpgid(bench.relay.pid) == bench.relay.pid
        assert select.select([stranger], [], [], 5)[0], "the relay holds the agent's descriptors"
    os.close(stranger)


def test_goodbye_writes_all_and_takes_the_scratch_directory_along(
    reader: Reader, tmp_path: Path
) -> None:
    """Closing waits for what is unwritten; folders of links and files are removed, not the links' targets."""
    scratch, target = tmp_path / "scratch", tmp_path / "target"
    (scratch / "attempt-0").mkdir(parents=True)
    target.mkdir()
    (target / "precious").touch()
    (scratch / "attempt-0" / "error.json").touch()
    (scratch / "link").symlink_to(target)
    relay = RelayClient.start(OwnOutput(reader.to_stdout, reader.to_stderr), scratch)
    printer = RelayBench(relay).open(0)
    os.write(printer.stdout, b"last")
    printer.close()

    relay.close(seconds=5)

    assert read_until(reader.stdout, b"last\n") == b"[rank 0] last\n"
    assert not scratch.exists()
    assert (target / "precious").exists()
    assert not Path(f"/proc/{relay.pid}").exists()


def test_goodbye_does_not_wait_for_ever(reader: Reader) -> None:
    """A reader that has stopped delays the end for no longer than the given time."""
    relay = RelayClient.start(OwnOutput(reader.to_stdout, reader.to_stderr), None)
    printer = RelayBench(relay).open(0)
    fill(printer.stdout)
    started = time.monotonic()

    relay.close(seconds=0.5)

    assert 0.4 < time.monotonic() - started < 5
    assert relay.how_it_ended == "exited with code 0"
    assert not Path(f"/proc/{relay.pid}").exists()
    printer.close()


@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGSTOP, "stopped responding"), (signal.SIGKILL, "was killed by SIGKILL")],
)
def test_a_relay_that_does_not_say_goodbye(
    reader: Reader, tmp_path: Path, number: int, how: str
) -> None:
    """The launcher ends a second later than announced at most, and prints the rest."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    relay = RelayClient.start(OwnOutput(reader.to_stdout, reader.to_stderr), scratch)
    os.kill(relay.pid, number)
    started = time.monotonic()

    relay.close(seconds=0.1)

    assert time.monotonic() - started < 10
    assert not Path(f"/proc/{relay.pid}").exists()
    assert (relay.losses, relay.how_it_ended) == (None, how)
    assert not scratch.exists()


def test_a_lost_relay_is_an_event(bench: RelayBench) -> None:
    """Its end is reported at once, and once."""
    os.kill(bench.relay.pid, signal.SIGKILL)

    event = bench.event()

    assert isinstance(event, HelperLost)
    assert (event.name, event.signal) == ("relay", signal.SIGKILL)
    assert "killed by SIGKILL" in event.how
    assert bench.relay.lost
    assert list(bench.relay.events(now=2.0)) == []


def test_a_relay_with_a_bug_is_an_event(reader: Reader) -> None:
    """It exits with its own code, and never continues as a second agent."""
    not_open = 9999
    with relay_on(reader.to_stdout, not_open) as bench:
        event = bench.event()

    assert isinstance(event, HelperLost)
    assert "code 6" in event.how


KILLED_AGENT = (
    imports(RelayClient, OwnOutput, WorkerOutput, LocalRank, Destination)
    + """
import os, subprocess, sys, time
from pathlib import Path

relay = RelayClient.start(OwnOutput(), Path(sys.argv[1]))
(out, to_out), (err, to_err) = os.pipe(), os.pipe()
to = Destination(None)
relay.open(WorkerOutput(LocalRank(0), "rank 0", "[rank 0] ", out, err, to, to, None))
holder = subprocess.Popen(["sleep", "60"], stdout=to_out, stderr=to_err)
print(relay.pid, flush=True, file=sys.stderr)
os.write(to_out, b"first words\\n" + b"y\\n" * 30000)
os.kill(os.getpid(), 9)
"""
)


@pytest.mark.parametrize("stopped", [False, True])
def test_the_relay_outlives_a_killed_agent_by_a_moment(tmp_path: Path, *, stopped: bool) -> None:
    """It reads what is left and exits at once, even if its output is not read."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    agent = subprocess.Popen(
        [sys.executable, "-c", KILLED_AGENT, str(scratch)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )
    with agent:
        assert agent.stdout
        assert agent.stderr
        relay = Path("/proc", agent.stderr.readline().strip().decode())
        agent.wait(10)

        text = b"" if stopped else agent.stdout.read()
        wait_until(lambda: not relay.exists() or "Z" in (relay / "stat").read_text())
        os.killpg(agent.pid, signal.SIGKILL)

    assert not scratch.exists()
    assert stopped or text == b"[rank 0] first words\n" + b"[rank 0] y\n" * 30_000
