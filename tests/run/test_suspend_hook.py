"""The suspend hook: a program that exits with 0 when the job is to be suspended."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from clusterrun.loop import Loop
from clusterrun.policy import events
from clusterrun.processes import raise_descriptor_limit
from clusterrun.run import suspend_hook

from tests.network.turns import events_of_turn
from tests.waiting import SECONDS_TO_ACT, wait_until

READY = 'if [ "$1" = ready ]; then '


class Hook:
    """Hooks that are shell scripts, and their events and notices."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = Loop[events.Event](lambda: 1.0)
        self.notices: list[str] = []
        self.hooks: list[suspend_hook.SuspendHook] = []

    def start(self, script: str) -> suspend_hook.SuspendHook:
        return self.start_program("sh", "-c", script, "hook")

    def start_program(self, *command: str) -> suspend_hook.SuspendHook:
        environ = {"PATH": "/usr/bin:/bin", "FOLDER": str(self.folder)}
        self.hooks.append(
            suspend_hook.SuspendHook(command, environ, self.notices.append, self.loop)
        )
        return self.hooks[-1]

    def events(self, seconds: float = SECONDS_TO_ACT) -> list[events.Event]:
        """Return the events of the next turns: a result and the end of its socket may take two."""
        printed = len(self.notices)
        found = events_of_turn(self.loop, seconds)
        if not found and len(self.notices) == printed:
            found = events_of_turn(self.loop, seconds)
        return found

    def close(self) -> None:
        for each in self.hooks:
            each.close()
        self.loop.close()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Hook]:
    hook = Hook(tmp_path)
    yield hook
    hook.close()


def test_exit_code_0_requests_a_suspension(started: Hook) -> None:
    """The hook's command line is the reason."""
    started.start("exit 0")

    assert started.events() == [
        events.SuspensionRequested("--suspend-hook sh -c 'exit 0' hook", 1.0),
    ]
    assert started.notices == []


@pytest.mark.parametrize(
    ("command", "how"),
    [
        (("sh", "-c", "exit 3"), "exited with code 3"),
        (("sh", "-c", "kill -9 $$"), "was killed by SIGKILL"),
        (("/no/such/hook",), "can't be executed: No such file or directory"),
    ],
)
def test_failure_is_a_warning_and_requests_nothing(
    started: Hook, command: tuple[str, ...], how: str
) -> None:
    started.start_program(*command)

    assert started.events() == []
    assert [how in notice for notice in started.notices] == [True]


def test_killed_supervising_process_is_a_warning(started: Hook) -> None:
    """The warning is printed once, nothing wakes the loop afterwards, and ``ready`` still runs."""
    before = set(psutil.Process().children())
    hook = started.start(f'{READY} exit 0; fi; touch "$FOLDER/runs"; exec sleep 1000')
    wait_until((started.folder / "runs").exists, "the hook")
    (process,) = set(psutil.Process().children()) - before
    (orphan,) = process.children()
    process.kill()
    orphan.kill()

    assert started.events() == []
    assert ["is lost with its process" in notice for notice in started.notices] == [True]
    assert hook.call_ready() == ""
    assert started.events(0.02) == []
    assert len(started.notices) == 1


def test_ready_is_waited_for(started: Hook) -> None:
    hook = started.start(f"{READY} touch $FOLDER/saved; fi")
    started.events()

    assert hook.call_ready() == ""
    assert (started.folder / "saved").exists()


def test_ready_runs_when_descriptors_have_high_numbers(started: Hook) -> None:
    """Node 0 of a large job has a connection to each node."""
    assert raise_descriptor_limit(1200) == 1200
    fillers = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        hook = started.start(f"{READY} touch $FOLDER/saved; fi")
        started.events()

        assert hook.call_ready() == ""
    finally:
        for each in fillers:
            os.close(each)


def test_ready_runs_before_the_hook_has_ended(started: Hook) -> None:
    """Something else has requested the suspension."""
    hook = started.start(f"{READY} exit 0; fi; sleep 1000")

    assert hook.call_ready() == ""


def test_failing_ready_is_reported(started: Hook) -> None:
    hook = started.start(f"{READY} exit 4; fi")

    assert hook.call_ready().endswith("hook ready exited with code 4")


def test_hanging_ready_is_killed(started: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job must end."""
    monkeypatch.setattr(suspend_hook, "SECONDS_FOR_READY", 0.2)
    hook = started.start(f"{READY} sleep 1000; fi")

    assert "gave no answer in 0.2 s" in hook.call_ready()


def test_close_kills_processes_that_left_the_group(started: Hook) -> None:
    """Even if their parent has exited at once."""
    pids = started.folder / "pids"
    script = (
        'sleep 1000 & (setsid sleep 1000 & echo $! >> "$FOLDER/pids"); echo $! >> "$FOLDER/pids"'
    )
    hook = started.start(f"{script}; mv $FOLDER/pids $FOLDER/all; sleep 1000")
    wait_until((started.folder / "all").exists, "the hook")
    sleepers = [int(pid) for pid in (started.folder / "all").read_text().split()]
    assert not pids.exists()
    assert len(sleepers) == 2

    hook.close()

    assert [pid for pid in sleepers if psutil.pid_exists(pid)] == []


def test_death_of_the_agent_kills_the_hook(started: Hook) -> None:
    """The kernel closes its socket."""
    agent = os.fork()
    if agent == 0:
        started.start('echo $$ > "$FOLDER/pid"; mv $FOLDER/pid $FOLDER/hook; sleep 1000')
        signal.pause()
    wait_until((started.folder / "hook").exists, "the hook")
    pid = int((started.folder / "hook").read_text())

    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)

    wait_until(lambda: not psutil.pid_exists(pid), "the hook's end")
