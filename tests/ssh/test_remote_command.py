"""The command that a login shell runs on a host, and the host's end of it."""

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
    REACHED,
    Call,
    Reached,
    interpreter_lines,
)

SHELLS = [shell for shell in ("sh", "bash", "fish", "csh", "tcsh", "zsh") if shutil.which(shell)]

PATIENCE = 60.0


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """Return a list of hosts that are ended after the test."""
    made: list[Host] = []
    yield made
    for host in made:
        host.end()


def printed_by(host: Host) -> dict[int, bytes]:
    """Read a host to its end; return what is shown of it, by stream."""
    host.open()
    shown = {1: b"", 2: b""}
    deadline = time.monotonic() + PATIENCE
    while not host.is_over:
        assert time.monotonic() < deadline, (host.reached, shown)
        host.flush()
        for stream, data in host.read():
            shown[stream] += data
        time.sleep(0.01)
    return shown


def host_by(command: list[str], interpreters: list[str], call: Call) -> Host:
    return Host(0, "here", command, interpreter_lines(interpreters), call)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_starts_the_first_interpreter(
    shell: str, hosts: list[Host], tmp_path: Path
) -> None:
    """Interpreters that the host lacks are passed over. Newlines and quotes in values arrive."""
    odd = 'it\'s "mine" $HOME;\n\\ *\udcff'
    (tmp_path / "train.py").write_text("import os; print(ascii(os.environ['ODD']), os.getcwd())")
    call = Call(["--nproc-per-node=1", "train.py"], str(tmp_path), {"ODD": odd})
    hosts.append(
        host_by([shell, "-c", COMMAND], ["/nowhere/python", sys.executable, "/bin/false"], call)
    )

    shown = printed_by(hosts[0])

    assert shown == {1: f"{odd!a} {tmp_path}\n".encode(), 2: b""}
    assert hosts[0].report is not None
    assert (hosts[0].report.code, hosts[0].exit_code, hosts[0].reached) == (0, 0, Reached.AGENT)


@pytest.mark.parametrize("shell", SHELLS)
def test_no_interpreter(shell: str, hosts: list[Host]) -> None:
    """The host has none of them."""
    hosts.append(
        host_by([shell, "-c", COMMAND], ["/nowhere/python", "/no where/it's"], Call([], "/", {}))
    )

    printed_by(hosts[0])

    assert (hosts[0].reached, hosts[0].exit_code) == (Reached.NO_INTERPRETER, 127)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_path_with_odd_characters(shell: str, tmp_path: Path) -> None:
    """It is not the shell that reads it."""
    odd = tmp_path / 'it\'s "mine" $HOME; \\ *'
    odd.symlink_to(sys.executable)

    done = subprocess.run(
        [shell, "-c", COMMAND],
        input=interpreter_lines([str(odd)]) + b"0f 2\n{}",
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )

    assert REACHED in done.stdout
    assert NO_INTERPRETER not in done.stdout


NOISY = """
printf 'welcome\\nno end of line'
printf 'news' >&2
exec sh -c "$0"
"""


def test_what_a_login_shell_prints_is_kept_apart(hosts: list[Host], tmp_path: Path) -> None:
    """Even if it ends without a line break; what the job prints is shown, and nothing else."""
    (tmp_path / "train.py").write_text(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)"
    )
    call = Call(["--nproc-per-node=1", "train.py"], str(tmp_path), {})
    hosts.append(host_by(["sh", "-c", NOISY, COMMAND], [sys.executable], call))

    shown = printed_by(hosts[0])

    assert shown == {1: b"out\n", 2: b"err\n"}
    assert (hosts[0].noise, hosts[0].errors) == (b"", b"news")
    report = hosts[0].report
    assert report is not None
    assert (report.code, report.rank, report.exit_code) == (3, 0, 3)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (Call([], "/no/such/folder", {}), "can't enter /no/such/folder: No such file or directory"),
        (Call(["--nope"], "/", {}), "there is no option --nope"),
    ],
)
def test_what_is_impossible_there_is_reported(hosts: list[Host], call: Call, said: str) -> None:
    hosts.append(host_by(["sh", "-c", COMMAND], [sys.executable], call))

    printed_by(hosts[0])

    report = hosts[0].report
    assert report is not None
    assert (report.code, report.reason) == (2, "UsageError")
    assert said in report.message


def test_another_version(hosts: list[Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterrun.clients.ssh.remote.version", lambda _: "0.0.1")
    hosts.append(host_by(["sh", "-c", COMMAND], [sys.executable], Call([], "/", {})))

    printed_by(hosts[0])

    report = hosts[0].report
    assert report is not None
    assert "but 0.0.1 on the host that started it" in report.message


FLOOD = """
import os, sys
for stream in (1, 2):
    for _ in range(1000):
        os.write(stream, 65536 * b"x")
"""


def test_a_host_that_prints_without_end_before_it_is_ready(hosts: list[Host]) -> None:
    """The end of it is kept, as an explanation."""
    hosts.append(host_by([sys.executable, "-c", FLOOD], ["/bin/false"], Call([], "/", {})))
    tracemalloc.start()
    try:
        shown = printed_by(hosts[0])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert shown == {1: b"", 2: b""}
    assert 0 < len(hosts[0].errors) <= 1 << 16
    assert peak < 4 << 20
