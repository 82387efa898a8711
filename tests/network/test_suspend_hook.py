"""The suspend hook: a program that exits with 0 when a suspension is wanted."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from clusterrun.loop import Loop
from clusterrun.network import suspend_hook
from clusterrun.policy import events
from clusterrun.processes import raise_descriptor_limit

from tests.network.turns import events_of_turn
from tests.waiting import SECONDS_TO_ACT, wait_until

READY = 'if [ "$1" = ready ]; then '


class Hook:
    """Hooks that are shell scripts, and what they have caused."""

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
        """Return what the next report of a hook means."""
        return events_of_turn(self.loop, seconds)

    def close(self) -> None:
        for each in self.hooks:
            each.close()
        self.loop.close()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Hook]:
    hook = Hook(tmp_path)
    yield hook
    hook.close()


def test_exit_code_0_asks_for_a_suspension(started: Hook) -> None:
    """Once; the words of the hook are the reason."""
    started.start("exit 0")

    assert started.events() == [
        events.SuspensionRequested("--suspend-hook sh -c 'exit 0' hook", 1.0),
    ]
    assert started.notices == []


@pytest.mark.parametrize(
    ("script", "how"),
    [("exit 3", "exited with code 3"), ("kill -9 $$", "was killed by signal 9")],
)
def test_another_end_is_a_warning(started: Hook, script: str, how: str) -> None:
    """And no suspension."""
    started.start(script)

    assert started.events() == []
    assert [how in notice for notice in started.notices] == [True]


def test_a_missing_program_is_a_warning(started: Hook) -> None:
    """The job runs nevertheless."""
    started.start_program("/no/such/hook")

    assert started.events() == []
    assert "can't be executed: No such file or directory" in started.notices[0]


def test_a_hook_whose_process_is_killed_is_a_warning(started: Hook) -> None:
    """Once; and nothing wakes the loop after that."""
    before = set(psutil.Process().children())
    hook = started.start('touch "$FOLDER/runs"; exec sleep 1000')
    wait_until((started.folder / "runs").exists, "the hook")
    (process,) = set(psutil.Process().children()) - before
    (orphan,) = process.children()
    process.kill()
    orphan.kill()

    assert started.events() == []
    assert ["is lost with its process" in notice for notice in started.notices] == [True]
    assert "its process has ended" in hook.call_ready()
    assert started.events(0.02) == []
    assert len(started.notices) == 1


def test_ready_runs_to_its_end(started: Hook) -> None:
    """What it reports is waited for."""
    hook = started.start(f"{READY} touch $FOLDER/saved; fi")
    started.events()

    assert hook.call_ready() == ""
    assert (started.folder / "saved").exists()


def test_ready_of_a_large_job(started: Hook) -> None:
    """Node 0 has a connection to each node: its descriptors have high numbers."""
    assert raise_descriptor_limit(1200) == 1200
    fillers = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        hook = started.start(f"{READY} touch $FOLDER/saved; fi")
        started.events()

        assert hook.call_ready() == ""
    finally:
        for each in fillers:
            os.close(each)


def test_ready_may_come_before_the_hook_has_ended(started: Hook) -> None:
    """Another source has asked for the suspension."""
    hook = started.start(f"{READY} exit 0; fi; sleep 1000")

    assert hook.call_ready() == ""


def test_a_failing_ready_is_reported(started: Hook) -> None:
    """In words for a notice."""
    hook = started.start(f"{READY} exit 4; fi")

    assert hook.call_ready().endswith("hook ready exited with code 4")


def test_a_hanging_ready_is_given_up(started: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job must end."""
    monkeypatch.setattr(suspend_hook, "SECONDS_FOR_READY", 0.2)
    hook = started.start(f"{READY} sleep 1000; fi")

    assert "gave no answer in 0.2 s" in hook.call_ready()


def test_nothing_outlives_it(started: Hook) -> None:
    """Not what has left its group either, even if its parent dies at once."""
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


def test_the_death_of_the_agent_ends_it(started: Hook) -> None:
    """Its socket is closed by the kernel."""
    agent = os.fork()
    if agent == 0:
        started.start('echo $$ > "$FOLDER/pid"; mv $FOLDER/pid $FOLDER/hook; sleep 1000')
        signal.pause()
    wait_until((started.folder / "hook").exists, "the hook")
    pid = int((started.folder / "hook").read_text())

    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)

    wait_until(lambda: not psutil.pid_exists(pid), "the hook's end")
