"""Output of workers: complete lines, in the right file, without delaying other workers."""

import os
import pty
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.launched import COMMAND, Job, Launcher, node_options, plain_environment
from tests.full_terminal import fill

SMALL_DISK = 64 << 10

SECONDS_TO_END = 20.0
"""The time limit for the launcher's end if its output is not read."""

PRINTS_FOREVER = """
    import itertools, os, signal, sys, time
    def save(*_):
        open("saved" + os.environ["RANK"], "w").write(str(time.monotonic()))
        os._exit(0)
    signal.signal(signal.SIGTERM, save)
    print("printing", file=sys.stderr, flush=True)
    for number in itertools.count():
        print(number, "x" * 100)
"""


def shell(line: str) -> tuple[str, ...]:
    """Return a command that runs ``line``, where "$@" is the launcher with its arguments."""
    return ("bash", "-c", f"set -o pipefail; {line}", "bash")


def logs_of(folder: Path) -> dict[str, str]:
    """Return the log files of the last run, by path in its folder, without the host."""
    latest = folder / "logs/latest"
    host = os.uname().nodename
    return {
        str(path.relative_to(latest)).replace(host, "HOST"): path.read_text()
        for path in latest.rglob("rank-*")
    }


def test_equal_tracebacks_are_printed_once(clusterrun: Launcher) -> None:
    """Log files have all of them."""
    script = """
        import os, signal, time
        from pathlib import Path
        # The first failure has clusterrun stop the others.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        rank = int(os.environ["RANK"])
        Path(f"begun-{rank}").touch()
        while len([*Path().glob("begun-*")]) < 4:
            time.sleep(0.01)
        def train():
            raise ValueError("loss is nan" if rank != 2 else "no data")
        train()
    """

    ended = clusterrun.script(script, "--log-dir=logs", "--tee=3", workers=4).ended()

    logs = [text for name, text in logs_of(clusterrun.folder).items() if name.endswith(".err")]
    assert ended.code == 1
    assert [text.count("Traceback") for text in logs] == 4 * [1]
    assert len(re.findall(r"\[rank \d\] Traceback", ended.err)) == 1, ended.err
    same = re.findall(r"\[ranks? ([\d,-]+)\] the same traceback as rank \d(, but:)?\n", ended.err)
    assert 1 <= len(same) <= 3, ended.err
    assert [but for _, but in same].count(", but:") >= 1
    assert ended.err.splitlines()[-1].startswith("clusterrun: exit code 1, from rank ")


def test_lines_have_the_prefix_of_their_rank(clusterrun: Launcher) -> None:
    """The last line needs no newline. A progress bar is printed once, at its end."""
    ended = clusterrun.script(
        """
        import os, sys
        print("hello from", os.environ["RANK"])
        sys.stderr.write("\\r10%\\r50%\\r100%\\n")
        sys.stdout.write("unfinished")
        """,
        workers=2,
    ).ended()

    assert ended.code == 0
    assert sorted(ended.out.splitlines(keepends=True)) == [
        "[rank 0] hello from 0\n",
        "[rank 0] unfinished\n",
        "[rank 1] hello from 1\n",
        "[rank 1] unfinished\n",
    ]
    assert sorted(ended.err.splitlines(keepends=True)) == ["[rank 0] 100%\n", "[rank 1] 100%\n"]


def test_single_worker_prints_as_without_a_launcher(clusterrun: Launcher) -> None:
    ended = clusterrun.script(
        """
        import sys
        sys.stdout.write("hello\\nunfinished")
        sys.stderr.write("\\r10%\\r100%")
        """,
        workers=1,
    ).ended()

    assert ended == (0, "hello\nunfinished", "\r10%\r100%")


def test_log_files_have_each_attempt_without_prefix(clusterrun: Launcher) -> None:
    """DIR/latest links to the last run. The report names a log."""
    ended = clusterrun.script(
        """
        import os, sys, time
        attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
        print("attempt", attempt, "rank", rank, flush=True)
        if rank == "0":
            open("printed" + attempt, "w")
        else:
            while not os.path.exists("printed" + attempt):
                time.sleep(0.01)
            sys.exit(f"attempt {attempt} fails")
        """,
        "--log-dir=logs",
        "--run-id=digits",
        "--max-restarts=1",
        workers=2,
    ).ended()

    assert ended.code == 1
    assert (clusterrun.folder / "logs/latest").readlink() == Path("digits")
    assert logs_of(clusterrun.folder) == {
        f"attempt-{attempt}/HOST-0/rank-{rank}.{stream}": text
        for attempt in (0, 1)
        for rank in (0, 1)
        for stream, text in (
            ("out", f"attempt {attempt} rank {rank}\n"),
            ("err", f"attempt {attempt} fails\n" if rank == 1 else ""),
        )
    }
    log = clusterrun.folder / f"logs/digits/attempt-1/{os.uname().nodename}-0/rank-1.err"
    assert f"\n  its log: {log}\n" in ended.err


def test_report_has_the_last_lines_of_the_failed_rank(clusterrun: Launcher) -> None:
    """Other ranks may have printed much since then."""
    ended = clusterrun.script(
        """
        import os, sys
        for number in range(1000):
            print("line", number, file=sys.stderr)
        if os.environ["RANK"] == "1":
            print("cannot read the data", file=sys.stderr)
            os._exit(3)
        """,
        workers=2,
    ).ended()

    _, _, report = ended.err.partition("clusterrun: rank 1 on ")
    assert ended.code == 3
    assert "\n    line 999\n    cannot read the data\n" in report
    assert "line 0\n" not in report


def test_closed_stdout_ends_the_job(clusterrun: Launcher) -> None:
    """``| head``: the exit code is 141, as in a shell, and lines explain it."""
    job = clusterrun.script(PRINTS_FOREVER, workers=2, around=shell('"$@" | head -n 1'))

    ended = job.ended()

    assert ended.code == 141
    assert ended.out.startswith("[rank ")
    assert [line for line in ended.err.splitlines() if line.startswith("clusterrun")] == [
        "clusterrun: standard output is closed: stopping all workers",
        "clusterrun: exit code 141: the reader of the output has gone (SIGPIPE)",
    ]
    assert job.left() == []


def test_stdout_closed_at_the_end_is_exit_code_141(clusterrun: Launcher) -> None:
    """``| true``: all workers have exited with 0 before."""
    ended = clusterrun.script(
        """
        import os, time
        while not os.path.exists("gone"):
            time.sleep(0.01)
        print("done")
        """,
        workers=2,
        around=shell('"$@" | { exec <&-; touch gone; }'),
    ).ended()

    assert ended.code == 141
    assert "clusterrun: exit code 141: the reader of the output has gone (SIGPIPE)" in ended.err


def test_job_with_log_files_needs_no_reader(clusterrun: Launcher) -> None:
    ended = clusterrun.script(
        "for number in range(5000): print(number, 'x' * 100)",
        "--log-dir=logs",
        workers=2,
        around=shell('"$@" | head -n 1'),
    ).ended()

    assert ended.code == 0
    assert ended.err == ""
    texts = [text for name, text in logs_of(clusterrun.folder).items() if name.endswith(".out")]
    assert texts == ["".join(f"{number} {'x' * 100}\n" for number in range(5000))] * 2


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_streams_may_be_closed_from_the_start(clusterrun: Launcher, redirection: str) -> None:
    """Cron may close them. No other file becomes descriptor 0, 1 or 2 in the launcher."""
    ended = clusterrun.script(
        """
        import os, sys
        print("out")
        print("err", file=sys.stderr)
        open("ended" + os.environ["RANK"], "w").write("yes")
        """,
        "--log-dir=logs",
        workers=2,
        around=shell(f'exec "$@" {redirection}'),
    ).ended()

    assert ended.code == 0
    lines = [] if ">&-" in redirection.split() else ["[rank 0] out", "[rank 1] out"]
    assert sorted(ended.out.splitlines()) == lines
    assert sorted(logs_of(clusterrun.folder).values()) == ["err\n", "err\n", "out\n", "out\n"]
    assert len(list(clusterrun.folder.glob("ended*"))) == 2


@pytest.mark.parametrize(
    ("option", "redirection", "last_line"),
    [
        pytest.param(
            "--log-dir=script0.py/logs",
            "",
            "clusterrun: error: --log-dir script0.py/logs: log files can't be written there:"
            " {script}: Not a directory\n  name another folder with --log-dir DIR\n",
            id="no folder",
        ),
        pytest.param(
            "--log-dir=logs",
            "",
            "clusterrun: exit code 3: 6 bytes of log file {log} could not be written:"
            " Not a directory\n",
            id="no file",
        ),
        pytest.param(
            "--max-restarts=0",
            ">/dev/full",
            "clusterrun: exit code 3: 6 bytes of standard output could not be written:"
            " No space left on device\n",
            id="full",
        ),
    ],
)
def test_lost_output_is_not_a_success(
    clusterrun: Launcher, option: str, redirection: str, last_line: str
) -> None:
    """The last line says what was lost. A folder that can not be created is an error at the start."""
    log = clusterrun.folder / f"logs/x/attempt-0/{os.uname().nodename}-0/rank-0.out"
    log.parents[3].mkdir()
    log.parents[2].touch()
    around = shell(f'exec "$@" {redirection}')
    ended = clusterrun.script(
        "print('hello')", option, "--run-id=x", workers=1, around=around
    ).ended()

    assert ended.code == 3
    script = clusterrun.folder / "script0.py"
    assert ended.err.endswith(last_line.format(log=log, script=script))


@pytest.mark.long
@pytest.mark.parametrize("code", [0, 7])
def test_report_is_printed_if_the_relay_hangs_at_the_end(clusterrun: Launcher, code: int) -> None:
    """The agent prints it and cleans up. Missing lines are not a success."""
    ended = clusterrun.script(
        f"""
        import os, psutil, signal, sys
        agent = psutil.Process(os.getppid()).parent()
        for child in agent.children():
            if child.name().startswith("clusterrun-rela"):
                child.send_signal(signal.SIGSTOP)
        sys.exit({code})
        """,
        workers=2,
        environ={"TMPDIR": str(clusterrun.folder)},
    ).ended()

    assert ended.code == (code or 3)
    assert ended.err.splitlines()[0] == (
        f"clusterrun: {'' if code else 'exit code 3: '}its relay stopped responding:"
        " the last lines of workers may be missing"
    )
    failed = re.search(r"clusterrun: rank \d on \S+ failed: exit code 7\n", ended.err)
    assert bool(failed) == bool(code)
    assert not list(clusterrun.folder.glob("clusterrun-*"))


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_unwritable_stderr_changes_no_exit_code(clusterrun: Launcher, redirection: str) -> None:
    around = shell(f'exec "$@" {redirection}')
    unknown = {"CLUSTERRUN_UNKNOWN": "1"}

    trained = clusterrun.script("print('trained')", workers=1, around=around, environ=unknown)
    mistaken = clusterrun.command("--unknown", around=around)

    assert trained.ended() == (0, "trained\n", "")
    assert mistaken.ended() == (2, "", "")


def test_python_development_mode_finds_nothing(clusterrun: Launcher) -> None:
    job = clusterrun.script(
        "print('trained')", workers=1, environ={"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error"}
    )

    assert job.ended() == (0, "trained\n", "")


@pytest.fixture
def small_disk(clusterrun: Launcher) -> Iterator[Path]:
    """Return a folder on a disk of 64 KiB."""
    disk = clusterrun.folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "none", str(disk)]
    subprocess.run(mount, check=True, timeout=10)

    yield disk

    # Lazily: after a failed test, a relay may use the disk for a moment.
    subprocess.run(["umount", "--lazy", disk], check=True, timeout=10)


def assert_ends_on_term(job: Job, folder: Path) -> None:
    """Assert that SIGTERM reaches both ranks of ``PRINTS_FOREVER``, and ends the launcher."""
    before = time.monotonic()
    job.signal(signal.SIGTERM)
    ended = job.ended(SECONDS_TO_END)
    saved = [float(path.read_text()) for path in folder.glob("saved*")]

    assert ended.code == 143
    assert len(saved) == 2
    assert max(saved) - before < SECONDS_TO_END


LINES = """
    import os, sys, time
    for number in range(5000):
        print(number, "x" * 100, flush=True)
    print("all printed", file=sys.stderr)
    while not os.path.exists("disk-has-space"):
        time.sleep(0.01)
    print("the last line")
"""


@pytest.mark.needs("root")
def test_full_disk_blocks_no_rank(clusterrun: Launcher, small_disk: Path) -> None:
    """A notice for each file reports it, and the last line says how much was lost."""
    job = clusterrun.script(LINES, f"--log-dir={small_disk}", "--tee=1", workers=2)
    job.wait_for("all printed", 2)
    job.wait_for(
        "No space left on device; rank . continues, but output that does not fit is lost", 2
    )
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True, timeout=10)
    (clusterrun.folder / "disk-has-space").touch()

    ended = job.ended()

    assert ended.out.count("x\n") == 2 * 5000
    assert ended.err.count("No space left on device; rank") == 2
    assert ended.code == 3
    for path in small_disk.rglob("*.out"):
        kept, found, rest = path.read_text().partition("the last line\n")
        assert (found, rest) == ("the last line\n", "")
        assert all(re.fullmatch(r"\d+( x*)?", line) for line in kept.splitlines())
    assert re.fullmatch(
        r"clusterrun: exit code 3: \d+ kB of log file \S+ and 1 other could not be written:"
        r" No space left on device",
        ended.err.splitlines()[-1],
    )


@pytest.mark.needs("root")
def test_redirected_output_is_printed_if_the_disk_is_full(
    clusterrun: Launcher, small_disk: Path
) -> None:
    options = (f"--log-dir={small_disk}", "--redirects=1")

    ended = clusterrun.script(
        "for number in range(5000): print(number, 'x' * 100)", *options, workers=2
    ).ended()

    assert ended.code == 0
    assert ended.err.count("No space left on device; rank") == 2
    assert ended.err.count("prints to clusterrun's output instead") == 2
    for rank, path in enumerate(sorted(small_disk.rglob("*.out"))):
        printed = re.findall(rf"(?m)^\[rank {rank}\] (.*\n)", ended.out)
        text = path.read_text() + "".join(printed)
        assert text == "".join(f"{number} {'x' * 100}\n" for number in range(5000))


@pytest.mark.needs("root")
@pytest.mark.parametrize("what", ["log files", "redirected", "standard output"])
def test_sigterm_ends_a_job_with_a_full_disk(
    impatient: Launcher, small_disk: Path, what: str
) -> None:
    """The workers get the signal at once."""
    if what != "standard output":
        redirects = ("--redirects=1",) if what == "redirected" else ()
        options = (f"--log-dir={small_disk}", *redirects)
        job = impatient.script(PRINTS_FOREVER, *options, workers=2)
    else:
        to_disk = shell(f'exec "$@" >{small_disk}/out')
        job = impatient.script(PRINTS_FOREVER, workers=2, around=to_disk)
    job.wait_for("printing", 2)
    job.wait_for("No space left on device")

    assert_ends_on_term(job, impatient.folder)


@pytest.fixture
def terminal() -> Iterator[tuple[int, str]]:
    """Return a terminal: the descriptor of its master end, and its path for programs."""
    master, slave = pty.openpty()

    yield master, os.ttyname(slave)

    os.close(slave)
    os.close(master)


def read_until(descriptor: int, text: bytes, times: int) -> None:
    """Read until ``text`` was printed ``times`` times."""
    seen = b""
    while seen.count(text) < times:
        seen += os.read(descriptor, 1 << 16)


@pytest.mark.parametrize("seconds", [1, pytest.param(20, marks=pytest.mark.long)])
def test_sigterm_ends_a_job_with_a_stopped_terminal(
    impatient: Launcher, terminal: tuple[int, str], seconds: float
) -> None:
    """Ctrl-S blocks only workers that print."""
    keyboard, path = terminal
    to_terminal = shell(f'exec "$@" >{path} 2>&1')
    job = impatient.script(PRINTS_FOREVER, workers=2, around=to_terminal)
    read_until(keyboard, b"printing", 2)

    # The test stops reading here.
    time.sleep(seconds)

    assert_ends_on_term(job, impatient.folder)


def test_stopped_terminal_does_not_delay_rendezvous(
    impatient: Launcher, terminal: tuple[int, str]
) -> None:
    """The last call ends although its line can not be printed."""
    _, path = terminal
    fill(path)
    job = impatient.script(
        PRINTS_FOREVER,
        *node_options()[0],
        "--nnodes=1:2",
        "--last-call-timeout=0.2",
        workers=2,
        around=shell(f'exec "$@" 2>{path}'),
    )
    job.wait_for(r"\b0 x", 2)

    assert_ends_on_term(job, impatient.folder)


def test_report_has_the_last_lines_of_a_hidden_rank(clusterrun: Launcher) -> None:
    """The rank is alone on its node."""
    script = "import os; assert os.environ['RANK'] == '0', 'boom'"
    jobs = [
        clusterrun.script(script, *options, "--ranks=0", workers=1) for options in node_options()
    ]

    _, ended = (job.ended() for job in jobs)

    assert ended.code == 1
    assert "    AssertionError: boom\n" in ended.err
    assert "  its output was hidden by --ranks 0\n" in ended.err


def test_no_line_is_torn_or_lost(clusterrun: Launcher) -> None:
    """Two ranks print fast on both streams."""
    lines = 30_000
    ended = clusterrun.script(
        f"""
        import os, sys
        for number in range({lines}):
            print(os.environ["RANK"], number, "loss 0.123456", file=(sys.stdout, sys.stderr)[number % 2])
        """,
        workers=2,
    ).ended(100)

    printed = [
        [f"[rank {rank}] {rank} {number} loss 0.123456" for number in range(parity, lines, 2)]
        for rank in (0, 1)
        for parity in (0, 1)
    ]
    assert ended.code == 0
    assert Counter(ended.out.splitlines()) == Counter(printed[0] + printed[2])
    assert Counter(ended.err.splitlines()) == Counter(printed[1] + printed[3])


def test_full_stderr_delays_all_warnings_together() -> None:
    """Twelve warnings wait two seconds in all."""
    reader, writer = os.pipe()
    fill(f"/proc/self/fd/{writer}")
    unknown = {f"CLUSTERRUN_UNKNOWN{number}": "1" for number in range(12)}

    done = subprocess.run(
        [COMMAND, "--no-python", "--dry-run", "true"],
        env=plain_environment() | unknown,
        stdout=subprocess.PIPE,
        stderr=writer,
        timeout=SECONDS_TO_END,
        check=False,
    )
    os.close(reader)
    os.close(writer)

    assert done.returncode == 0
    assert done.stdout
