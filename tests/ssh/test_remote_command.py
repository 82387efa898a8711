"""The command that a login shell runs on a host, and bootstrap."""

import shutil
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import pytest
from clusterrun.clients.ssh.host import Host
from clusterrun.clients.ssh.remote import (
    COMMAND,
    NO_INTERPRETER,
    SHELL_READY,
    HostCommand,
    Stage,
    interpreter_lines,
)
from clusterrun.policy.end_report import EndReport

SHELLS = [shell for shell in ("sh", "bash", "fish", "csh", "tcsh", "zsh") if shutil.which(shell)]

TIMEOUT = 60.0


class Run(NamedTuple):
    """A host whose command has ended, and what was shown, by stream."""

    host: Host
    shown: dict[int, bytes]


def run_to_end(ssh: list[str], command: HostCommand, *interpreters: str) -> Run:
    """Run a host's command until it ends, with these words in place of ssh."""
    host = Host(0, "here", ssh, interpreter_lines(interpreters or [sys.executable]), command)
    shown = {1: b"", 2: b""}
    deadline = time.monotonic() + TIMEOUT
    try:
        host.start()
        while not host.has_ended:
            assert time.monotonic() < deadline, (host.stage, shown)
            host.flush()
            for stream, data in host.read():
                shown[stream] += data
            time.sleep(0.01)
    finally:
        host.stop()
    return Run(host, shown)


def report_of(run: Run) -> EndReport:
    assert run.host.report is not None
    return run.host.report


@pytest.mark.parametrize("shell", SHELLS)
def test_first_existing_interpreter_runs_in_every_shell(shell: str, tmp_path: Path) -> None:
    """Newlines and quotes in variables arrive unchanged; PWD is the folder."""
    special = 'it\'s "mine" $HOME;\n\\ *\udcff'
    (tmp_path / "train.py").write_text(
        "import os; print(ascii(os.environ['ODD']), os.getcwd(), os.environ['PWD'])"
    )
    command = HostCommand(["--nproc-per-node=1", "train.py"], str(tmp_path), {"ODD": special})

    run = run_to_end(
        [shell, "-c", COMMAND], command, "/nowhere/python", sys.executable, "/bin/false"
    )

    assert run.shown == {1: f"{special!a} {tmp_path} {tmp_path}\n".encode(), 2: b""}
    assert (report_of(run).code, run.host.exit_code, run.host.stage) == (0, 0, Stage.AGENT)


@pytest.mark.parametrize("shell", SHELLS)
def test_host_without_any_interpreter(shell: str) -> None:
    command = HostCommand([], "/", {})

    host, _ = run_to_end([shell, "-c", COMMAND], command, "/nowhere/python", "/no where/it's")

    assert (host.stage, host.exit_code) == (Stage.NO_INTERPRETER, 127)


@pytest.mark.parametrize("shell", SHELLS)
def test_interpreter_path_with_special_characters(shell: str, tmp_path: Path) -> None:
    """The shell does not parse it."""
    special = tmp_path / 'it\'s "mine" $HOME; \\ *'
    special.symlink_to(sys.executable)

    done = subprocess.run(
        [shell, "-c", COMMAND],
        input=interpreter_lines([str(special)]) + b"0f 2\n{}",
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )

    assert SHELL_READY in done.stdout
    assert NO_INTERPRETER not in done.stdout


NOISY = """
printf 'welcome\\nno end of line'
printf 'news' >&2
exec sh -c "$0"
"""


def test_login_shell_output_is_separate_from_job_output(tmp_path: Path) -> None:
    """Even if the shell's output does not end with a line break."""
    (tmp_path / "train.py").write_text(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)"
    )
    command = HostCommand(["--nproc-per-node=1", "train.py"], str(tmp_path), {})

    run = run_to_end(["sh", "-c", NOISY, COMMAND], command)

    assert run.shown == {1: b"out\n", 2: b"err\n"}
    assert (run.host.shell_output, run.host.errors) == (b"", b"news")
    report = report_of(run)
    assert (report.code, report.rank, report.exit_code) == (3, 0, 3)


@pytest.mark.parametrize(
    ("words", "folder", "message"),
    [
        ([], "/no/such/folder", "can't enter /no/such/folder: No such file or directory"),
        (["--nope"], "/", "there is no option --nope"),
    ],
)
def test_usage_error_on_host_is_in_report(words: list[str], folder: str, message: str) -> None:
    report = report_of(run_to_end(["sh", "-c", COMMAND], HostCommand(words, folder, {})))

    assert (report.code, report.reason) == (2, "UsageError")
    assert message in report.message


def test_different_version_on_host_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterrun.clients.ssh.remote.version", lambda _: "0.0.1")

    run = run_to_end(["sh", "-c", COMMAND], HostCommand([], "/", {}))

    assert "but 0.0.1 on the host that started it" in report_of(run).message


FLOOD = """
import os, sys
for stream in (1, 2):
    for _ in range(250):
        os.write(stream, 65536 * b"x")
"""


def test_endless_output_before_ready_uses_bounded_memory() -> None:
    """The last bytes are kept as an explanation."""
    tracemalloc.start()
    try:
        run = run_to_end([sys.executable, "-c", FLOOD], HostCommand([], "/", {}), "/bin/false")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert run.shown == {1: b"", 2: b""}
    assert 0 < len(run.host.errors) <= 1 << 16
    assert peak < 4 << 20
