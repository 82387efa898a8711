"""The relay as a process: what workers print to pipes reaches readers, files and the agent."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.policy import events
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.routes import Destination, LauncherOutput, LineStyle, WorkerOutput

from tests.imports import imports
from tests.waiting import wait_until
from tests.workers.relay.relay_bench import RelayBench, fill, read_until, relay_on


@dataclass
class Reader:
    """Two pipes, the launcher's stdout and stderr, and their read ends."""

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


def test_stopped_reader_does_not_block_a_hidden_worker(bench: RelayBench, tmp_path: Path) -> None:
    """Its output goes to a file only, which gets all of it."""
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


def test_output_ended_has_the_error_file(bench: RelayBench, tmp_path: Path) -> None:
    """As text; a directory or a named pipe in its place causes neither an error nor a wait."""
    file, fifo = tmp_path / "error.json", tmp_path / "fifo"
    file.write_text('{"message": "no"}', encoding="utf-8")
    os.mkfifo(fifo)
    for rank, path in enumerate((file, fifo, tmp_path, tmp_path / "missing")):
        bench.open(rank, error_file=path).close()

    errors = [bench.finish(rank).error_file for rank in range(4)]

    assert errors == ['{"message": "no"}', "", "", ""]


def test_pipe_held_by_a_grandchild_does_not_delay_output_ended(
    bench: RelayBench, reader: Reader
) -> None:
    """All that was printed before is in it."""
    printer = bench.open(0)
    os.write(printer.stderr, b"last words")

    ended = bench.finish(0)

    assert ended.tail == "last words"
    assert read_until(reader.stderr, b"words\n") == b"[rank 0] last words\n"


def test_later_output_of_a_grandchild_is_shown_and_logged(
    bench: RelayBench, reader: Reader, tmp_path: Path
) -> None:
    """An upload may outlive its rank: a closed pipe would kill it."""
    printer = bench.open(0, tmp_path)
    os.write(printer.stdout, b"saved")
    bench.finish(0)

    os.write(printer.stdout, b"uploading\n")
    assert read_until(reader.stdout, b"ing\n") == b"[rank 0] saved\n[rank 0] uploading\n"
    os.write(printer.stdout, b"uploaded")
    bench.relay.close(10)

    assert os.read(reader.stdout, 100) == b"[rank 0] uploaded\n"
    assert (tmp_path / "rank-0.out").read_text() == "saved\nuploading\nuploaded\n"


def test_grandchild_does_not_delay_the_end_of_the_relay(bench: RelayBench) -> None:
    """The relay closes the pipe, even if SIGKILL has not ended the grandchild."""
    printer = bench.open(0)
    bench.finish(0)
    began = time.monotonic()

    bench.relay.close(20)

    assert time.monotonic() - began < 10
    assert has_no_reader(printer.stdout)


def test_next_attempt_closes_the_pipes_of_the_last(bench: RelayBench) -> None:
    """A job may restart a thousand times."""
    printer = bench.open(0)
    bench.finish(0)

    bench.open(0)

    assert has_no_reader(printer.stdout)


def has_no_reader(descriptor: int) -> bool:
    """Wait until a process that prints to a pipe would get SIGPIPE."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return poll.poll(5000) == [(descriptor, select.POLLERR)]


def test_output_ended_of_a_worker_without_pipes_is_empty(bench: RelayBench) -> None:
    """It prints to the terminal itself, or there never was such a worker."""
    assert bench.finish(5) == events.OutputEnded(LocalRank(5), "", "", 1.0)


def test_notice_is_printed_before_the_style_is_known(bench: RelayBench, reader: Reader) -> None:
    """The first worker brings the style; here it is a single worker."""
    bench.relay.notice("the driver is slow")
    seen = read_until(reader.stderr, b"slow\n")
    bench.style = LineStyle(raw=True)
    os.write(bench.open(0).stdout, b"name? ")

    assert seen == b"clusterrun: the driver is slow\n"
    assert read_until(reader.stdout, b"? ") == b"name? "


def test_quoted_text_in_a_notice_begins_no_line(bench: RelayBench, reader: Reader) -> None:
    """Control characters are escaped; continuation lines are indented."""
    bench.relay.notice("no a\nclusterrun: b\x1b[31m\u202e:\n    its last line")

    assert read_until(reader.stderr, b"line\n") == (
        b"clusterrun: no a\\nclusterrun: b\\x1b[31m\\u202e:\n    its last line\n"
    )


def test_closed_stderr_is_tolerated(bench: RelayBench, reader: Reader) -> None:
    """Its lines are dropped, and the tail is kept."""
    printer = bench.open(0)
    os.close(reader.stderr)

    os.write(printer.stderr, b"nobody\n")
    os.write(printer.stdout, b"hello\n")

    assert read_until(reader.stdout, b"hello\n") == b"[rank 0] hello\n"
    assert bench.finish(0).tail == "nobody"


def test_both_streams_to_one_pipe_are_one_output(reader: Reader) -> None:
    """``2>&1``: lines of both stay whole, in the order in which they were read."""
    with relay_on(reader.to_stdout, reader.to_stdout) as bench:
        printer = bench.open(0)

        os.write(printer.stdout, b"x" * 100_000)
        long_line = read_until(reader.stdout, b"x" * 30_000)
        os.write(printer.stderr, b"oops\n")
        rest = read_until(reader.stdout, b"oops\n")

        text = long_line + rest
        assert text.endswith(b"\n[rank 0] oops\n")


def test_idle_relay_sleeps(bench: RelayBench, reader: Reader) -> None:
    """Even if half a line waits."""
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
    """Return how often a process has gone to sleep."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    [line] = [line for line in status.splitlines() if line.startswith("voluntary")]
    return int(line.split()[1])


def ran_for(pid: int) -> float:
    """Return the seconds that a process has run on a CPU."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def test_relay_ignores_signals_and_closes_the_agents_descriptors(reader: Reader) -> None:
    """It has its own process group and name."""
    read_end, kept_open = os.pipe()
    with relay_on(reader.to_stdout, reader.to_stderr) as bench:
        process = Path(f"/proc/{bench.relay.pid}")
        os.close(kept_open)
        wait_until(lambda: (process / "comm").read_text() != Path("/proc/self/comm").read_text())

        for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "TSTP", "TTIN", "TTOU", "PIPE"):
            os.kill(bench.relay.pid, signal.Signals[f"SIG{name}"])
        bench.finish(0)

        assert os.getpgid(bench.relay.pid) == bench.relay.pid
        assert select.select([read_end], [], [], 5)[0], "the relay holds the agent's descriptors"
    os.close(read_end)


@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGSTOP, "stopped responding"), (signal.SIGKILL, "was killed by SIGKILL")],
)
def test_relay_that_is_stopped_or_killed_is_closed(
    reader: Reader, tmp_path: Path, number: int, how: str
) -> None:
    """The launcher waits for at most one more second, and removes the scratch folder."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    relay = RelayClient.start(LauncherOutput(reader.to_stdout, reader.to_stderr), scratch)
    os.kill(relay.pid, number)
    started = time.monotonic()

    relay.close(seconds=0.1)

    assert time.monotonic() - started < 10
    assert not Path(f"/proc/{relay.pid}").exists()
    assert (relay.losses, relay.exit_description) == (None, how)
    assert not scratch.exists()


def test_exception_in_the_relay_is_helper_lost(reader: Reader) -> None:
    """It exits with its own code, and never continues as a second agent."""
    not_open = 9999
    with relay_on(reader.to_stdout, not_open) as bench:
        event = bench.event()

    assert isinstance(event, events.HelperLost)
    assert "code 6" in event.how


KILLED_AGENT = (
    imports(RelayClient, LauncherOutput, WorkerOutput, LocalRank, Destination)
    + """
import os, subprocess, sys, time
from pathlib import Path

relay = RelayClient.start(LauncherOutput(), Path(sys.argv[1]))
(out, to_out), (err, to_err) = os.pipe(), os.pipe()
to = Destination(None)
output = WorkerOutput(LocalRank(0), "rank 0", "[rank 0] ", to, to, None)
relay.open(output, {"stdout": out, "stderr": err})
holder = subprocess.Popen(["sleep", "60"], stdout=to_out, stderr=to_err)
print(relay.pid, flush=True, file=sys.stderr)
os.write(to_out, b"first words\\n" + b"y\\n" * 30000)
os.kill(os.getpid(), 9)
"""
)


@pytest.mark.parametrize("stopped", [False, True])
def test_relay_of_a_killed_agent_drains_and_exits(tmp_path: Path, *, stopped: bool) -> None:
    """Even if its output is not read."""
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
