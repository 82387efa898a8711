"""Random faults of a job with services on two hosts: all nodes name them, and nothing is left."""

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

from tests.contract.launched import Job, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import ended
from tests.rounds import numbers
from tests.waiting import text_of

INTERNAL_ERROR = 6

HEARTBEAT_TIMEOUT = 4
SHORT_FREEZE = 2
"""Seconds: no node is lost, and no helper is killed."""
LONG_FREEZE = 10
"""Seconds: the node is lost."""

PROGRAM = """
    import os, signal, subprocess, sys, time
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    name = f"{os.environ['ROLE_NAME']} {os.environ['ROLE_RANK']}"
    faulty, _, fault = os.environ.get("FAULT", "").partition(":")
    fault = fault if faulty == name else ""
    # Its child ignores SIGTERM, and has a session of its own.
    ignores = "import signal, time; signal.signal(15, 1); time.sleep(1000)"
    subprocess.Popen([sys.executable, "-c", ignores], start_new_session=True)
    if fault == "ignores SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(f"{name}.pid", "w") as file:
        print(os.getpid(), file=file)
    print("begins", name, flush=True)

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(503 if fault == "is never ready" else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    if not name.startswith("default"):
        server = HTTPServer(("0.0.0.0", int(os.environ["PORT"])), Answers)
        Thread(target=server.serve_forever, daemon=True).start()
    end = time.monotonic() + (float(os.environ["MAIN_SECONDS"]) if name.startswith("default") else 1000)
    act = time.monotonic() + float(os.environ["DELAY"])
    while time.monotonic() < end:
        time.sleep(0.02)
        if fault and time.monotonic() > act:
            if fault == "raises":
                raise ValueError("a planted fault")
            if fault.startswith("exits"):
                os._exit(int(fault.split()[1]))
"""

FILE = """\
script: {folder}/program.py
nproc_per_node: {main}
services:
  server:
    script: {folder}/program.py
    {size}
    ready: {{path: /health, timeout: 8}}
  judge:
    command: [{python}, {folder}/program.py]
    after: server
    ready: tcp
"""


class Fault(NamedTuple):
    """What goes wrong, and how the job must end."""

    of_program: str
    """``NAME RANK:what it does``; "" for nothing."""
    of_test: str
    """What the test does, and to which process or node; "" for nothing."""
    codes: frozenset[int]
    text: str
    """In the report of each remaining node."""
    lost: int | None = None
    """The node whose agent is killed."""


def random_fault(number: int, main: int, size: str) -> tuple[Fault, float]:
    """Return the fault of a round, and after how many seconds it happens."""
    dice = random.Random(number)
    servers = 2 if size == "nproc_per_node: 1" else 1
    rank, server, judge = dice.randrange(2 * main), dice.randrange(servers), dice.randrange(2)
    node, code = dice.randrange(2), dice.randrange(1, 100)
    killed = frozenset({128 + signal.SIGKILL})
    faults = [
        Fault("", "", frozenset({0}), ""),
        Fault(f"server {server}:ignores SIGTERM", "", frozenset({0}), ""),
        Fault(f"default {rank}:raises", "", frozenset({1}), f"rank {rank} on n"),
        Fault(f"default {rank}:exits {code}", "", frozenset({code}), f"rank {rank} on n"),
        Fault(f"server {server}:raises", "", frozenset({1}), f"server rank {server} on n"),
        Fault(f"server {server}:exits {code}", "", frozenset({code}), f"server rank {server} on n"),
        Fault(f"judge {judge}:exits 0", "", frozenset({0, 1}), ""),
        Fault(f"server {server}:is never ready", "", frozenset({1}), f"server rank {server} on n"),
        Fault("", f"kills default {rank}", killed, f"rank {rank} on n"),
        Fault("", f"kills server {server}", killed, f"server rank {server} on n"),
        Fault("", f"kills judge {judge}", killed, f"judge rank {judge} on n"),
        Fault("", f"kills agent {node}", frozenset({5}), "", node),
        Fault("", f"kills fork_server {node}", killed, "fork server"),
        Fault("", f"kills relay {node}", killed, "relay"),
        Fault("", f"freezes fork_server {node}", killed, "fork server"),
        Fault("", f"freezes relay {node}", killed, "relay"),
        Fault("", f"freezes agent {node} for {LONG_FREEZE} s", frozenset({5}), ""),
        *(
            Fault("", f"freezes {process} for {SHORT_FREEZE} s", frozenset({0}), "")
            for process in (
                *(f"agent {node}", f"fork_server {node}", f"relay {node}"),
                *(f"default {rank}", f"server {server}", f"judge {judge}"),
            )
        ),
        Fault("", f"cuts {node}", frozenset({5}), ""),
        Fault("", f"terminates {node}", frozenset({128 + signal.SIGTERM}), ""),
    ]
    # Each of them once in so many rounds.
    return faults[number % len(faults)], dice.uniform(0, 1.5)


def inject(fault: str, jobs: Sequence[Job], hosts: Sequence[Host], folder: Path) -> None:
    """Inject a fault of the test into a program, a helper, an agent or a host."""
    verb, *words = fault.split()
    match verb, words:
        case "cuts", [node]:
            hosts[int(node)].cut()
        case "terminates", [node]:
            jobs[int(node)].signal(signal.SIGTERM)
        case "kills", [name, number]:
            os.kill(pid_of(name, number, jobs, folder), signal.SIGKILL)
        case "freezes", [name, number, *seconds]:
            pid = pid_of(name, number, jobs, folder)
            os.kill(pid, signal.SIGSTOP)
            if seconds:
                time.sleep(float(seconds[1]))
                os.kill(pid, signal.SIGCONT)


def pid_of(name: str, number: str, jobs: Sequence[Job], folder: Path) -> int:
    """Return the process id of a node's agent or helper, or of a program's rank."""
    match name:
        case "agent":
            return jobs[int(number)].agent
        case "fork_server":
            return jobs[int(number)].fork_server
        case "relay":
            return jobs[int(number)].relay
    return int(text_of(folder / f"{name} {number}.pid", f"{name} {number} begins"))


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", numbers(25))
def test_random_fault_names_program_and_rank(
    number: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """All remaining nodes name it, and nothing is left."""
    folder = clusterrun.folder
    main = 1 + number % 2
    size = ("nnodes: 1", "nproc_per_node: 1")[number // 2 % 2]
    fault, delay = random_fault(number, main, size)
    (folder / "program.py").write_text(dedent(PROGRAM))
    text = FILE.format(folder=folder, main=main, size=size, python=sys.executable)
    (folder / "job.yaml").write_text(text)
    options = ("--shutdown-timeout=2", f"--heartbeat-timeout={HEARTBEAT_TIMEOUT}", "--nnodes=2")
    # A helper's freeze is noticed before the job ends.
    seconds = 8.0 if fault.of_test.startswith("freezes") else 2.5
    environ = {"FAULT": fault.of_program, "DELAY": str(delay), "MAIN_SECONDS": str(seconds)}

    jobs = [
        clusterrun.command(
            *("--config", "job.yaml", *options, f"--master-addr={hosts[0].address}"),
            f"--node-rank={rank}",
            around=hosts[rank].around,
            environ=environ,
        )
        for rank in range(2)
    ]
    if fault.of_test:
        jobs[0].wait_for("begins default")
        time.sleep(delay)
        inject(fault.of_test, jobs, hosts, folder)
    ends = ended(jobs)

    context = f"{fault}, after {delay:.2f} s\n" + "\n".join(map(str, ends))
    for node, end in enumerate(ends):
        if node != fault.lost:
            assert end.code in fault.codes, context
            assert fault.text in end.err, context
            assert end.code != INTERNAL_ERROR, context
    assert [job.left() for job in jobs] == [[], []], context
