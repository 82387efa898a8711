"""``clusterrun ps``, ``status`` and ``stop`` on a job of one node, through the installed command."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from clusterrun.cli.commands import COMMANDS_BY_WORD
from clusterrun.cli.main import run_command_line

from tests.as_another_user import run_as_another_user
from tests.commands.run_commands import assert_runs_until_stopped, run_command, start_job
from tests.contract.launched import COMMAND, Launcher, node_options, stop_process
from tests.contract.shell import Shell
from tests.imports import imports
from tests.waiting import wait_until

PRINTS = """
import os, time
rank = os.environ["RANK"]
print("begun", os.getpid(), flush=True)
for step in range(100000):
    # At once: a command may ask between two writes.
    print(f"step {step} of rank {rank}", flush=True)
    time.sleep(0.05)
"""

BOUND = 2.0
"""Seconds in which a command answers, without the start of its interpreter."""


def test_ps_status_and_stop(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """Options may follow RUN. RUN may be omitted in commands that do not end the job."""
    job = start_job(clusterrun, runtime, PRINTS)
    for rank in range(2):
        job.wait_for(rf"step \d+ of rank {rank}")

    listed = run_command(runtime, "ps")
    shown = json.loads(run_command(runtime, "status", "mine", "--json").stdout)
    table = run_command(runtime, "status")
    # As watch(1) types it.
    narrow = run_command({**runtime, "COLUMNS": "70"}, "status")
    stopped = run_command(runtime, "stop", "mine")
    done = job.ended()

    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["run", "mine"]
    [node] = shown["nodes"]
    assert [rank["state"]["state"] for rank in node["ranks"]] == ["running"] * 2
    last = [rank["state"]["last_line"] for rank in node["ranks"]]
    assert [line.split()[0] for line in last] == ["step", "step"], node
    assert all(rank["cpu_use"] is not None for rank in node["ranks"])
    assert all(rank["lines_per_second"] is not None for rank in node["ranks"])
    assert all(rank["state"]["lines"] > 0 for rank in node["ranks"])
    assert sorted(rank["state"]["pid"] for rank in node["ranks"]) == sorted(job.numbers("begun", 2))
    assert table.stdout.startswith("run mine: ")
    assert "of rank 1" in table.stdout
    assert all(len(line) <= 70 for line in narrow.stdout.splitlines()[1:])
    assert re.search(r"step \d+ of rank 1$", narrow.stdout, re.MULTILINE)
    assert stopped.stdout.startswith("run mine was asked to stop: its workers get SIGTERM")
    assert done.code == 143
    assert "clusterrun stop: stopping 2 workers (grace 25 s" in done.err
    assert run_command(runtime, "ps").stdout == "you have no clusterrun job on this host\n"


def test_status_with_frozen_rank_and_relay(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """Without the relay, only the last lines are missing."""
    job = start_job(clusterrun, runtime, PRINTS)
    frozen = job.numbers("begun", 2)[0]
    stop_process(frozen)
    os.kill(job.relay, signal.SIGSTOP)

    began = time.monotonic()
    shown = json.loads(run_command(runtime, "status", "--json").stdout)
    took = time.monotonic() - began
    os.kill(job.relay, signal.SIGCONT)
    now = run_command(runtime, "stop", "--now", "mine")

    states = {rank["state"]["pid"]: rank["state"]["state"] for rank in shown["nodes"][0]["ranks"]}
    assert states.pop(frozen) == "stopped"
    assert list(states.values()) == ["running"]
    assert took < 10 * BOUND
    assert "its workers are killed" in now.stdout
    assert job.ended().code == 143


def test_stopped_agent_is_named(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """The commands do not wait for it, and name the command that continues it."""
    job = start_job(clusterrun, runtime, PRINTS)
    stop_process(job.agent)

    listed, shown = run_command(runtime, "ps"), run_command(runtime, "status", "mine")
    os.kill(job.agent, signal.SIGCONT)

    advice = f"pid {job.agent} is stopped; kill -CONT {job.agent} continues it"
    assert listed.returncode == 0
    assert f"no answer: {advice}" in listed.stdout
    assert shown.returncode == 1
    assert advice in shown.stderr
    assert_runs_until_stopped(job, runtime)


def test_wrong_run_name_suggests_the_right_one(
    clusterrun: Launcher, runtime: dict[str, str]
) -> None:
    """The job keeps running."""
    job = start_job(clusterrun, runtime, PRINTS)

    wrong = [run_command(runtime, word, "mien") for word in ("status", "stop", "suspend")]

    for done, word in zip(wrong, ("status", "stop", "suspend"), strict=True):
        assert done.returncode == 2
        assert "you have no run called 'mien' on this host" in done.stderr
        assert "did you mean mine?" in done.stderr
        assert f"\n    clusterrun {word} mine    # " in done.stderr
    assert_runs_until_stopped(job, runtime)


@pytest.mark.parametrize("word", ["stop", "suspend"])
def test_stop_and_suspend_ask_for_confirmation(
    word: str, clusterrun: Launcher, runtime: dict[str, str], tmp_path: Path
) -> None:
    """If the command names no run, the only run may not be the one that the user means."""
    job = start_job(clusterrun, runtime, PRINTS)
    question = rf"{word} run mine \(\S+script0.py, 1 node, 2 ranks, for \d+ s\)\? \[y/N\] "

    without_terminal = run_command(runtime, word)
    shell = Shell(tmp_path, XDG_RUNTIME_DIR=runtime["XDG_RUNTIME_DIR"])
    try:
        shell.type(f"{COMMAND} {word}")
        shell.expect(question)
        shell.type("")
        shell.expect("clusterrun: left run mine running")
        refused = shell.exit_code()
        shell.type(f"{COMMAND} {word} || {COMMAND} stop --now mine")
        shell.expect(question)
        shell.type("y" if word == "stop" else "nay")
        shell.expect("run mine was asked to stop")
    finally:
        shell.close()

    assert without_terminal.returncode == 2
    assert f"name the run:\n    clusterrun {word} mine    # " in without_terminal.stderr
    assert refused == 1
    assert job.ended().code == 143


def test_shell_completion_of_run_names(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """A stopped agent does not block the shell."""
    job = start_job(clusterrun, runtime, PRINTS)
    variables = {**runtime, "_CLUSTERRUN_COMPLETE": "bash_complete", "COMP_CWORD": "2"}

    offered = [
        run_command({**variables, "COMP_WORDS": f"clusterrun {word} mi"}).stdout
        for word in RUN_COMMANDS
    ]
    stop_process(job.agent)
    stopped = run_command({**variables, "COMP_WORDS": "clusterrun status mi"})
    os.kill(job.agent, signal.SIGCONT)

    assert offered == ["plain,mine\n"] * len(RUN_COMMANDS)
    assert stopped.stdout == "\n"
    assert_runs_until_stopped(job, runtime)


def test_commands_while_nodes_join(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """The job is listed and can be stopped. The other commands report that it still waits."""
    options = (*node_options()[0], "--run-id=mine")
    job = clusterrun.script(PRINTS, *options, workers=2, environ=runtime)
    listed = wait_until(lambda: listed_agents(runtime), "the agent is listed")

    refused = [run_command(runtime, word, "mine") for word in ("status", "suspend")]
    table = run_command(runtime, "ps")
    stopped = run_command(runtime, "stop", "mine")
    done = job.ended()

    assert [(each["run_id"], each["state"], each["nodes"]) for each in listed] == [
        ("mine", "joining", 2)
    ]
    assert all(each.returncode == 1 for each in refused)
    assert all(
        "run mine is still waiting on this host for other nodes" in each.stderr for each in refused
    )
    assert re.search(r"mine +\d+ s +2 +- +- +- +joining +\d+ +\S+script0.py", table.stdout)
    assert stopped.stdout == "run mine was asked to stop: it no longer waits for nodes\n"
    assert done.code == 143
    assert "SIGTERM before any worker was started; exit code 143" in done.err
    assert run_command(runtime, "ps").stdout == "you have no clusterrun job on this host\n"


def listed_agents(runtime: dict[str, str]) -> list[dict[str, Any]]:
    """Return what ``ps`` lists."""
    agents: list[dict[str, Any]] = json.loads(run_command(runtime, "ps", "--json").stdout)["agents"]
    return agents


RUN_COMMANDS = [
    word for word, command in COMMANDS_BY_WORD.items() if command.words.startswith("[RUN")
]

AS_ANOTHER_USER = (
    imports(run_command_line)
    + f"RUN_COMMANDS = {RUN_COMMANDS}"
    + """
import os, sys

print(run_command_line(["ps"], dict(os.environ)), flush=True)
for words in [*([word] for word in RUN_COMMANDS), ["stacks", "--native"], ["stop", "--now"]]:
    print(*words, run_command_line([*words, "mine"], dict(os.environ)), flush=True)
    print(*words, run_command_line(words, dict(os.environ)), flush=True)
"""
)


@pytest.mark.needs("root", "setpriv")
def test_other_user_cannot_see_or_stop_a_job(
    clusterrun: Launcher, runtime: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with XDG_RUNTIME_DIR set to the folder of the sockets."""
    job = start_job(clusterrun, runtime, PRINTS)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime["XDG_RUNTIME_DIR"])

    done = run_as_another_user(AS_ANOTHER_USER)
    still = run_command(runtime, "ps")

    first, second, *others = done.stdout.splitlines()
    assert (first, second) == ("you have no clusterrun job on this host", "0"), done.stderr
    assert len(others) == 2 * (len(RUN_COMMANDS) + 2)
    assert {line[-2:] for line in others} <= {" 1", " 2"}, others
    assert done.stderr.count("you have no clusterrun job on this host\n") == len(others)
    assert str(job.agent) not in done.stdout + done.stderr
    assert "mine" in still.stdout
    assert_runs_until_stopped(job, runtime)


@pytest.mark.long
def test_commands_with_closed_output(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """A service manager may start a command without standard output."""
    job = start_job(clusterrun, runtime, PRINTS)
    for command in ("ps", "status mine", "stacks mine"):
        done = run_command(runtime, *command.split(), around=("sh", "-c", 'exec "$@" >&-', "sh"))
        assert "Traceback" not in done.stderr
    assert_runs_until_stopped(job, runtime)


def test_waiting_agent_is_not_chosen(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """Spares have a run id of their own until they join; this job runs without it."""
    job = start_job(clusterrun, runtime, PRINTS)
    spare = clusterrun.script(PRINTS, *node_options()[0], workers=2, environ=runtime)
    wait_until(lambda: len(listed_agents(runtime)) == 2, "both agents are listed")

    status = run_command(runtime, "status")
    spare.signal(signal.SIGTERM)

    assert (status.returncode, "run mine: " in status.stdout) == (0, True), status
    assert spare.ended().code == 143
    assert_runs_until_stopped(job, runtime)
