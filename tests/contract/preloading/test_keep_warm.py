"""``--keep-warm``: the next launch starts from what the last one has imported, or says why not."""

import os
import signal
import socket
import struct
import time

import psutil
import pytest
from free_ports import free_port

from tests.contract.door import HelperChannel, connected
from tests.contract.launched import SECONDS_TO_VANISH, Ended, Launcher, await_end, left_of
from tests.contract.preloading.warm_launches import (
    ALWAYS,
    REPLACED,
    WARM,
    importers,
    launch,
    outlived,
)
from tests.waiting import wait_until


def test_a_second_launch_imports_nothing(warm: Launcher) -> None:
    first = launch(warm, args=("one",))
    second = launch(warm, args=("two",))

    assert importers(first) == importers(second)
    assert WARM not in first.err
    assert WARM in second.err
    assert "['one']" in first.out
    assert "['two']" in second.out


BUSY = "serves another job: this one imports anew\n"


def test_a_launch_at_the_same_time_is_cold_and_says_so(warm: Launcher) -> None:
    """The one that runs goes on, and the server stays for the next."""
    first = launch(warm)
    running = warm.folder / "running"
    program = warm.folder / "program.py"
    text = program.read_text()
    program.write_text(
        f"{text}\nimport os, time\nif 'waits' in sys.argv:\n    print('runs', flush=True)\n    while not os.path.exists({str(running)!r}):\n        time.sleep(0.01)\n"
    )
    long = warm.command(*ALWAYS, "program.py", "waits", workers=2)
    long.wait_for("runs", times=2)

    meanwhile = launch(warm)
    running.touch()
    ended = outlived(long)

    assert importers(ended) == importers(first) != importers(meanwhile)
    assert BUSY in meanwhile.err
    assert importers(launch(warm)) == importers(first)


def test_without_the_option_a_launch_uses_none(warm: Launcher) -> None:
    first = launch(warm)

    assert importers(launch(warm, "--keep-warm", "0")) != importers(first)


def test_an_edited_script_is_read_again(warm: Launcher) -> None:
    first = launch(warm)
    program = warm.folder / "program.py"
    program.write_text(program.read_text() + "print('edited')\n")

    second = launch(warm)

    assert importers(second) == importers(first)
    assert second.out.count("edited") == 2


def test_a_failure_leaves_it_warm(warm: Launcher) -> None:
    (warm.folder / "program.py").write_text(
        "import slow_module, sys\nprint('imported by', slow_module.IMPORTED_BY)\n"
        "sys.exit(3 if 'fail' in sys.argv else 0)\n"
    )
    first = launch(warm)

    assert outlived(warm.command(*ALWAYS, "program.py", "fail", workers=2)).code == 3
    assert importers(launch(warm)) == importers(first)


def test_it_ends_when_its_time_is_over(warm: Launcher) -> None:
    launch(warm, "--keep-warm", "0.5")
    server = server_of(warm)

    await_end(server)
    assert list((warm.folder / "runtime" / "clusterrun").iterdir()) == []


@pytest.mark.needs("root")
def test_contained_workers_start_from_it(warm: Launcher) -> None:
    first = launch(warm, "--contain")
    second = launch(warm, "--contain")

    assert importers(first) == importers(second)
    assert WARM in second.err
    assert REPLACED.findall(launch(warm).err) == ["contain"]


@pytest.mark.long
def test_two_nodes_on_one_machine(warm: Launcher) -> None:
    """Both import in the first round; one of the two servers stays, and serves one of them each time."""

    def job() -> list[Ended]:
        join = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", f"{free_port()}")
        nodes = [
            warm.command(*ALWAYS, *join, "--node-rank", f"{rank}", "program.py", workers=2)
            for rank in range(2)
        ]
        ended = [outlived(node) for node in nodes]
        assert [it.code for it in ended] == [0, 0], ended
        return ended

    job()
    second, third = job(), job()

    served = [it for it in second + third if WARM in it.err]
    assert [BUSY in it.err for it in second + third] == [it not in served for it in second + third]
    assert len(served) == 2
    assert len({number for it in served for number in importers(it)}) == 1
    assert warm.command("stop", "--warm").ended().out == "ended 1 warm fork server\n"
    assert left_of(warm.mark, SECONDS_TO_VANISH) == []


def test_stop_ends_it(warm: Launcher) -> None:
    launch(warm)
    server = server_of(warm)

    assert warm.command("stop", "--warm").ended().out == "ended 1 warm fork server\n"
    await_end(server)
    assert warm.command("stop", "--warm").ended().out == "ended 0 warm fork servers\n"


def test_one_that_was_killed_is_replaced(warm: Launcher) -> None:
    first = launch(warm)
    os.kill(server_of(warm), signal.SIGKILL)

    assert importers(launch(warm)) != importers(first)


def test_the_job_dies_with_it(warm: Launcher) -> None:
    launch(warm)
    (warm.folder / "program.py").write_text(
        "import slow_module, subprocess, time\n"
        "subprocess.Popen(['sleep', '100'], start_new_session=True)\n"
        "print('ready', flush=True)\ntime.sleep(100)\n"
    )
    job = warm.command(*ALWAYS, "program.py", workers=2)
    job.wait_for("ready", times=2)

    os.kill(server_of(warm), signal.SIGKILL)

    assert job.ended().code == 128 + signal.SIGKILL
    assert "its fork server has ended, which was warm; the job was stopped" in job.err
    assert job.left() == []


def test_the_job_dies_with_its_guard(warm: Launcher) -> None:
    """The server ends what the job has started, which nobody else would."""
    launch(warm)
    (warm.folder / "program.py").write_text(
        "import slow_module, subprocess, time\n"
        "print('daemon', subprocess.Popen(['sleep', '100'], start_new_session=True).pid, flush=True)\n"
        "time.sleep(100)\n"
    )
    job = warm.command(*ALWAYS, "program.py", workers=2)
    daemons = job.numbers("daemon", 2)

    os.kill(psutil.Process(server_of(warm)).ppid(), signal.SIGKILL)

    assert job.ended().code == 128 + signal.SIGKILL
    wait_until(lambda: not any(map(psutil.pid_exists, daemons)), "the end of the daemons")
    assert job.left() == []


def test_programs_that_connect_and_say_nothing_delay_nothing(warm: Launcher) -> None:
    first = launch(warm)
    channels = [channel_to(warm) for _ in range(4)]

    second = launch(warm)

    assert importers(second) == importers(first)
    for channel in channels:
        channel.close()


def test_a_request_that_is_not_whole_ends_nothing(warm: Launcher) -> None:
    first = launch(warm)
    for request in ({"kind": "serve"}, {"kind": "serve", "key": {}, "prepare": {}}, {"kind": 3}):
        channel = channel_to(warm)
        channel.send(request)
        channel.close()

    assert importers(launch(warm)) == importers(first)


def test_the_reader_of_its_output_sees_the_end(warm: Launcher) -> None:
    """A pipe that the warm server held open would keep ``| tee`` waiting."""
    started = time.monotonic()
    launch(warm)

    assert time.monotonic() - started < 30
    assert psutil.pid_exists(server_of(warm))


def test_a_stranger_s_folder_is_not_used(warm: Launcher) -> None:
    folder = warm.folder / "runtime" / "clusterrun"
    folder.mkdir()
    folder.chmod(0o777)

    first, second = launch(warm), launch(warm)

    # The server is elsewhere.
    assert importers(second) == importers(first)
    assert list(folder.iterdir()) == []


def test_spawned_workers_leave_nothing(warm: Launcher) -> None:
    job = warm.command("--keep-warm", "100", "--start-method", "spawn", "program.py", workers=1)

    assert "--keep-warm: the workers are spawned, so that nothing stays" in job.ended().err


def test_stop_without_a_name(warm: Launcher) -> None:
    ended = warm.command("stop").ended()

    assert (ended.code, ended.out) == (2, "")
    assert "type clusterrun stop --warm" in ended.err


def channel_to(warm: Launcher) -> HelperChannel:
    [path] = (warm.folder / "runtime" / "clusterrun").glob("warm-*")
    channel = connected(path)
    assert channel is not None
    return channel


def server_of(warm: Launcher) -> int:
    """Return the process that listens: the one that has imported."""
    channel = channel_to(warm)
    with socket.socket(fileno=os.dup(channel.fileno())) as connection:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    channel.close()
    return int(struct.unpack("3i", credentials)[0])
