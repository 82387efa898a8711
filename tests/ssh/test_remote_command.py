"""The command that a login shell runs on a host, and bootstrap."""

import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

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

SHELLS = [shell for shell in ("sh", "bash", "fish", "csh", "tcsh", "zsh") if shutil.which(shell)]

TIMEOUT = 60.0


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """Return a list of hosts that are stopped after the test."""
    made: list[Host] = []
    yield made
    for host in made:
        host.stop()


def run_to_end(host: Host) -> dict[int, bytes]:
    """Run a host's command until it ends; return what is shown, by stream."""
    host.start()
    shown = {1: b"", 2: b""}
    deadline = time.monotonic() + TIMEOUT
    while not host.has_ended:
        assert time.monotonic() < deadline, (host.stage, shown)
        host.flush()
        for stream, data in host.read():
            shown[stream] += data
        time.sleep(0.01)
    return shown


def host_with(ssh: list[str], interpreters: list[str], command: HostCommand) -> Host:
    return Host(0, "here", ssh, interpreter_lines(interpreters), command)


@pytest.mark.parametrize("shell", SHELLS)
def test_first_existing_interpreter_runs_in_every_shell(
    shell: str, hosts: list[Host], tmp_path: Path
) -> None:
    """Newlines and quotes in variables arrive unchanged."""
    special = 'it\'s "mine" $HOME;\n\\ *\udcff'
    (tmp_path / "train.py").write_text("import os; print(ascii(os.environ['ODD']), os.getcwd())")
    command = HostCommand(["--nproc-per-node=1", "train.py"], str(tmp_path), {"ODD": special})
    hosts.append(
        host_with(
            [shell, "-c", COMMAND], ["/nowhere/python", sys.executable, "/bin/false"], command
        )
    )

    shown = run_to_end(hosts[0])

    assert shown == {1: f"{special!a} {tmp_path}\n".encode(), 2: b""}
    assert hosts[0].report is not None
    assert (hosts[0].report.code, hosts[0].exit_code, hosts[0].stage) == (0, 0, Stage.AGENT)


@pytest.mark.parametrize("shell", SHELLS)
def test_host_without_any_interpreter(shell: str, hosts: list[Host]) -> None:
    hosts.append(
        host_with(
            [shell, "-c", COMMAND], ["/nowhere/python", "/no where/it's"], HostCommand([], "/", {})
        )
    )

    run_to_end(hosts[0])

    assert (hosts[0].stage, hosts[0].exit_code) == (Stage.NO_INTERPRETER, 127)


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


def test_login_shell_output_is_separate_from_job_output(hosts: list[Host], tmp_path: Path) -> None:
    """Even if the shell's output does not end with a line break."""
    (tmp_path / "train.py").write_text(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)"
    )
    command = HostCommand(["--nproc-per-node=1", "train.py"], str(tmp_path), {})
    hosts.append(host_with(["sh", "-c", NOISY, COMMAND], [sys.executable], command))

    shown = run_to_end(hosts[0])

    assert shown == {1: b"out\n", 2: b"err\n"}
    assert (hosts[0].shell_output, hosts[0].errors) == (b"", b"news")
    report = hosts[0].report
    assert report is not None
    assert (report.code, report.rank, report.exit_code) == (3, 0, 3)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            HostCommand([], "/no/such/folder", {}),
            "can't enter /no/such/folder: No such file or directory",
        ),
        (HostCommand(["--nope"], "/", {}), "there is no option --nope"),
    ],
)
def test_usage_error_on_host_is_in_report(
    hosts: list[Host], command: HostCommand, message: str
) -> None:
    hosts.append(host_with(["sh", "-c", COMMAND], [sys.executable], command))

    run_to_end(hosts[0])

    report = hosts[0].report
    assert report is not None
    assert (report.code, report.reason) == (2, "UsageError")
    assert message in report.message


def test_different_version_on_host_is_reported(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterrun.clients.ssh.remote.version", lambda _: "0.0.1")
    hosts.append(host_with(["sh", "-c", COMMAND], [sys.executable], HostCommand([], "/", {})))

    run_to_end(hosts[0])

    report = hosts[0].report
    assert report is not None
    assert "but 0.0.1 on the host that started it" in report.message


FLOOD = """
import os, sys
for stream in (1, 2):
    for _ in range(1000):
        os.write(stream, 65536 * b"x")
"""


def test_endless_output_before_ready_uses_bounded_memory(hosts: list[Host]) -> None:
    """The last bytes are kept as an explanation."""
    hosts.append(host_with([sys.executable, "-c", FLOOD], ["/bin/false"], HostCommand([], "/", {})))
    tracemalloc.start()
    try:
        shown = run_to_end(hosts[0])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert shown == {1: b"", 2: b""}
    assert 0 < len(hosts[0].errors) <= 1 << 16
    assert peak < 4 << 20
