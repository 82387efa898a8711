"""An agent that a client on another machine has called: its messages, and what ends it with the client."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import IO

import pytest

from tests.contract.door import How, caller
from tests.contract.launched import MARK, kill_marked, left_of
from tests.waiting import SECONDS_TO_ACT

SILENCE = 1.0

WORKS = """
    import subprocess, sys, time
    subprocess.Popen(["sleep", "100"], start_new_session=True)
    print("ready", flush=True)
    time.sleep(100)
"""


class Client:
    """Calls an agent as the client of ssh does: over pipes, with signs of life."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"called-{folder}"
        self.agent = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", "clusterrun.cli.called", "here it begins"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, MARK: self.mark},
            cwd="/",
        )
        reading, writing = map(_descriptor, (self.agent.stdout, self.agent.stdin))
        greeting = b""
        while not greeting.endswith(b"\n"):
            greeting += os.read(reading, 1)
        assert greeting == b"here it begins\n"
        self.channel = caller.CallerChannel(caller.FROM_AGENT, reading, writing)
        self.received: list[caller.FromAgent] = []

    def calls(self, script: str, *options: str, version: str = "") -> None:
        (self.folder / "script.py").write_text(dedent(script))
        self.channel.send(
            caller.Call(
                tuple(map(os.fsencode, (*options, "script.py"))),
                folder=os.fsencode(self.folder),
                variables={b"ODD": b"\xff"},
                version=version,
                silence=SILENCE,
            )
        )

    def starts(self) -> None:
        self.channel.send(caller.Start())

    def works(self) -> None:
        """Have workers start that have children in other sessions."""
        self.calls(WORKS, "--nproc-per-node=2")
        self.starts()
        self.until("ready")

    def lives(self, seconds: float) -> None:
        """Give signs of life, and read."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.channel.end is None:
            self.channel.send(caller.Beat())
            self.received += self.channel.receive()
            time.sleep(SILENCE / 10)

    def until(self, text: str = "") -> None:
        """Live until the agent is ready, and workers have printed ``text``."""
        deadline = time.monotonic() + SECONDS_TO_ACT
        while not self.of(caller.Ready) or text not in self.printed:
            assert time.monotonic() < deadline, self.received
            assert self.channel.end is None, self.received
            self.lives(SILENCE / 10)

    def lives_on(self) -> None:
        """Live until the agent has ended."""
        self.lives(SECONDS_TO_ACT)
        assert self.channel.end is not None

    @property
    def printed(self) -> str:
        lines = [it.data for it in self.received if isinstance(it, caller.Output)]
        return b"".join(lines).decode(errors="replace")

    def of(self, kind: type) -> list[object]:
        return [it for it in self.received if isinstance(it, kind)]

    def kills(self) -> None:
        kill_marked(self.mark)
        self.agent.wait()
        assert self.agent.stderr is not None
        self.agent.stderr.close()
        if self.channel.end is not How.OURS:
            self.channel.close()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    made = Client(tmp_path)
    yield made
    made.kills()


def test_output_and_report_are_messages(client: Client) -> None:
    os.mkfifo(client.folder / "printed")
    client.calls(
        """
        import os, sys
        print(os.fsencode(os.environ["ODD"]), os.getcwd(), flush=True)
        # The one that fails waits for the other.
        open("printed", "w" if os.environ["RANK"] == "0" else "r").close()
        sys.exit(3 if os.environ["RANK"] == "1" else 0)
        """,
        "--nproc-per-node=2",
    )
    client.starts()
    client.lives_on()

    assert client.of(caller.Ready) == [caller.Ready()]
    lines = sorted(client.printed.splitlines())
    assert lines == [
        f"[rank {rank}] {os.fsencode(chr(0xDCFF))!r} {client.folder}" for rank in (0, 1)
    ]
    [ended] = client.of(caller.Ended)
    assert isinstance(ended, caller.Ended)
    assert ended == client.received[-1]
    assert ended.code == client.agent.wait() == 3
    assert len(ended.report.outcome.fates) == 2


def test_an_agent_waits_for_the_start_and_gives_signs_of_life(client: Client) -> None:
    client.calls("print('begun')", "--nproc-per-node=1")
    client.until()
    client.lives(3 * SILENCE)
    assert client.received[0] == caller.Ready()
    assert len(client.of(caller.Beat)) >= 4
    assert client.printed == ""

    client.starts()
    client.lives_on()

    assert client.printed == "begun\n"


@pytest.mark.parametrize(
    ("options", "version", "message"),
    [
        (("--nproc-per-node=0",), "", "--nproc-per-node: '0' is not a number of workers"),
        ((), "0.0.1", "and 0.0.1 where it was typed"),
    ],
)
def test_a_job_that_can_not_start_is_refused(
    client: Client, options: tuple[str, ...], version: str, message: str
) -> None:
    client.calls("", *options, version=version)
    client.lives_on()

    [refused] = client.received
    assert isinstance(refused, caller.Refused)
    assert refused.kind == "UsageError"
    assert message in refused.message
    assert client.agent.wait() == 2


def test_noise_is_another_version(client: Client) -> None:
    os.write(client.channel.writing, b"\0\0\0\1\xc1")
    client.lives_on()

    [refused] = client.received
    assert isinstance(refused, caller.Refused)
    assert "another version of clusterrun" in refused.message


def test_a_signal_ends_the_job_in_order(client: Client) -> None:
    client.works()

    client.channel.send(caller.Signal(signal.SIGTERM))
    client.lives_on()

    assert any("stopping 2 workers" in str(notice) for notice in client.of(caller.Notice))
    assert client.agent.wait() == 128 + signal.SIGTERM
    assert left_of(client.mark, SECONDS_TO_ACT) == []


def test_the_end_of_the_client_ends_all(client: Client) -> None:
    client.works()

    client.channel.close()

    assert left_of(client.mark, SECONDS_TO_ACT) == []


def test_the_silence_of_the_client_ends_all(client: Client) -> None:
    client.works()

    assert left_of(client.mark, SECONDS_TO_ACT) == []


@pytest.mark.parametrize("starts", [False, True])
def test_the_end_of_the_client_ends_an_agent_that_waits(client: Client, starts: bool) -> None:
    """For the start, or for a node that does not come."""
    client.calls(WORKS, "--nnodes=2", "--node-rank=0", "--hosts=localhost,other.invalid")
    if starts:
        client.starts()
    client.until()
    client.lives(SILENCE)

    client.channel.close()

    assert left_of(client.mark, SECONDS_TO_ACT) == []


def test_a_frozen_agent_ends_with_its_client(client: Client) -> None:
    """And all that its workers have started, in sessions of their own, too."""
    client.works()

    os.kill(client.agent.pid, signal.SIGSTOP)
    client.channel.close()

    assert left_of(client.mark, SECONDS_TO_ACT) == []
    assert client.agent.wait(SECONDS_TO_ACT) == -signal.SIGKILL


def _descriptor(stream: IO[bytes] | None) -> int:
    """Return a copy of its own: of a file object, it would be closed twice."""
    assert stream is not None
    with stream:
        return os.dup(stream.fileno())
