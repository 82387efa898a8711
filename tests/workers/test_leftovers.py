"""Processes that successful workers leave running, as the fork server sees them."""

import signal
import sys
from pathlib import Path

from clusterrun.bounds import LocalRank
from clusterrun.policy import events, outcome
from clusterrun.workers.fork_server import kernel, messages
from clusterrun.workers.fork_server.kernel import boot_clock

from tests.imports import imports, output_of
from tests.workers.fork_server_bench import Bench, Reader

RANK_3 = {"RANK": "3"}

PARENT = """
import os, signal, subprocess, time

CHILD = "trap 'echo asked' TERM; read line; echo $line; read line; echo $line"
child = subprocess.Popen(["sh", "-c", CHILD], stdin=subprocess.PIPE)

def end(*_):
    child.communicate(b"ended by its parent\\n")
    os._exit(0)

signal.signal(signal.SIGTERM, end)
child.stdin.write(b"ready\\n")
child.stdin.flush()
while True: time.sleep(0.1)
"""

FORKS = """
import os, subprocess, time
os.environ["RANK"] = "3"
forked = os.fork()
if not forked:
    time.sleep(1000)
executed = subprocess.Popen(["sleep", "1000"])
# Its environment is the new one once its program runs.
while rank_of(executed.pid) != 3:
    time.sleep(0.01)
print(rank_of(forked))
executed.kill()
os.kill(forked, 9)
"""


def leaves(bench: Bench, code: str) -> Reader:
    """Return the output of a worker that has run this shell code, and has ended with 0."""
    printed = bench.spawn(0, "sh", "-c", code, env=RANK_3)
    ended = bench.events(2)[1]
    assert ended == events.WorkerEnded(LocalRank(0), outcome.Exited(0), 7.0)
    return printed


def test_no_leftovers(bench: Bench) -> None:
    """The answer comes at once."""
    leaves(bench, "exit 0")

    bench.server.send(messages.WaitForChildren())

    assert bench.event() == events.NoLeftovers(7.0)


def test_leftover_process_ends_by_itself(bench: Bench) -> None:
    """The kernel notifies the fork server, which has adopted it."""
    printed = leaves(bench, "(sleep 0.2; echo uploaded) & echo over")
    bench.server.send(messages.WaitForChildren())

    assert bench.event() == events.NoLeftovers(7.0)
    assert printed.rest() == "over\nuploaded\n"


def test_leftover_is_named_by_program_and_rank(bench: Bench) -> None:
    """Its own children are not named: there may be many, and they end with it."""
    printed = leaves(bench, "sh -c 'echo $$; sleep 1000; sleep 1000' & echo over")
    pid = next(int(line) for line in (printed.line(), printed.line()) if line != "over")

    bench.server.send(messages.ListChildren())

    assert bench.event() == events.LeftoversNamed((events.LeftoverProcess(pid, "sh", 3),), 7.0)


def test_forked_process_has_no_rank() -> None:
    """/proc shows the environment of its parent, whose RANK may be that of a node."""
    assert output_of(f"{imports(kernel.rank_of)}{FORKS}", RANK="1") == "None\n"


def test_signal_reaches_adopted_orphans(bench: Bench) -> None:
    """They become children of the fork server when the signal ends their parent."""
    printed = leaves(bench, "sh -c 'sleep 1000; sleep 1000' & echo over")
    bench.server.send(messages.WaitForChildren())

    bench.server.send(messages.SignalChildren(int(signal.SIGTERM)))

    assert bench.event() == events.NoLeftovers(7.0)
    assert printed.rest() == "over\n"


def test_signal_is_not_sent_to_children_of_leftovers(bench: Bench, tmp_path: Path) -> None:
    """A program that handles the signal ends its children itself."""
    program = tmp_path / "parent.py"
    program.write_text(PARENT)
    printed = leaves(bench, f"{sys.executable} {program} &")
    assert printed.line() == "ready"
    bench.server.send(messages.WaitForChildren())

    bench.server.send(messages.SignalChildren(int(signal.SIGTERM)))

    assert bench.event() == events.NoLeftovers(7.0)
    assert printed.rest() == "ended by its parent\n"


def test_cleanup_cancels_wait_for_leftovers(bench: Bench) -> None:
    """Workers of the next attempt don't get the signal for the leftovers of the last one."""
    leaves(bench, "trap '' TERM; sleep 1000 & exit 0")
    bench.server.send(messages.WaitForChildren())
    bench.server.send(messages.SignalChildren(int(signal.SIGTERM)))
    bench.server.clean_up(7.0)
    assert bench.event() == events.CleanedUp((), 7.0)

    printed = bench.spawn(0, "sh", "-c", "echo here; sleep 0.5; echo there")

    assert isinstance(bench.event(), events.WorkerStarted)
    assert printed.rest() == "here\nthere\n"


def test_expired_lease_kills_leftovers(bench: Bench) -> None:
    """The other nodes continue without this one."""
    leaves(bench, "sleep 1000 &")
    bench.server.send(messages.WaitForChildren())

    bench.server.renew_lease(boot_clock() + 0.1)

    assert bench.event() == events.NoLeftovers(7.0)
    assert kernel.children_of(bench.server.pid) == []
