"""Services of a job file: keys, values, defaults; errors have file, line and key."""

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from clusterrun.errors import ExitCode, UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.job import Job, ProgramKind, WorkerProgram
from clusterrun.job.job_file import read_job_file
from clusterrun.job.values import RankSet, WorkerCount

from tests.contract.launched import plain_environment
from tests.described import describe, mistake

KEYS = (
    "other keys go at the top level; a service's keys: command, script, module, args, env,"
    " python, nnodes, node_ranks, nproc_per_node, gpus_per_worker, devices, ready, after, on_failure,"
    " must_finish, world, port"
)
NAMES = "use lowercase letters, digits and _, such as reward_model; main, master and default are reserved"
ONE_PROGRAM = "give it one of command, script, module"
QUOTES = "put quotes around it if it is meant as text"
FOR_EXAMPLE = "write, for example,\n  "
RANKS = "give numbers from 0 and ranges of them, such as 0,8-15"
DEVICES = "give each device once, such as 0,2,5-7"
READY = "write /health, which asks http://ADDRESS:$PORT/health, or tcp"
TOO_MANY = "4 GPUs, and 2 workers with 1 each (rl.yaml:5 services.server.gpus_per_worker) need 2"
TOO_HIGH = "its 3 workers on a node would have ports 65534 to 65536, but the highest port is 65535"
YES_OR_NO = "give 1 or 0, true or false"
CYCLE = "  a: {command: a, ready: tcp, after: b}\n  b: {command: b, ready: tcp, after: a}"
ANOTHER_PORT = "give a different one, or remove port: free ones are chosen"


def read(text: str) -> tuple[Any, ...]:
    """Return the services of a file rl.yaml with this text."""
    Path("rl.yaml").write_text(dedent(text))
    return read_job_file(Setting("rl.yaml", "--config")).services


def read_one(*lines: str) -> Any:
    """Return the only service of a file rl.yaml; its keys are these lines, from line 3 on."""
    (service,) = read("services:\n  server:\n" + "".join(f"    {line}\n" for line in lines))
    return service


def describe_job(text: str, **flags: str) -> Job:
    """Return the job of a file rl.yaml with this text, and these flags."""
    Path("rl.yaml").write_text(dedent(text))
    return describe(flags={"config": "rl.yaml", **flags}).job


# Keys and values.


def test_defaults_of_a_service() -> None:
    service = read_one("command: [trl, vllm-serve]")

    assert (service.name, service.where) == ("server", "rl.yaml:2 services.server")
    assert (service.nnodes, service.node_ranks) == (None, None)
    assert (service.nproc_per_node, service.gpus_per_worker, service.devices) == (1, 0, ())
    assert (service.ready, service.ready_timeout, service.after) == ("", 600.0, ())
    assert (service.on_failure.value, service.must_finish, service.world) == ("stop", False, False)
    assert (service.python, service.env, service.port) == ("", {}, None)


def test_all_keys_of_a_service() -> None:
    """The origin of a value has file, line and key; for a default, the line of the service."""
    Path("rl.yaml").write_text(
        dedent("""\
            script: train.py
            services:
              data: {command: serve, ready: tcp}
              server:
                module: sglang.launch_server
                args: [--port, $PORT, 010, no]
                env: {A: no, B: }
                python: /opt/python
                nnodes: 2
                nproc_per_node: 4
                gpus_per_worker: 2
                devices: [1-7, GPU-1]
                ready: {path: /health, timeout: 1800}
                after: data
                on_failure: ignore
                must_finish: yes
                world: true
                port: 8000
            """)
    )

    data, server = read_job_file(Setting("rl.yaml", "--config")).services

    assert data.name == "data"
    assert server.program == WorkerProgram(
        ProgramKind.MODULE, "sglang.launch_server", ("--port", "$PORT", "010", "no")
    )
    assert server.env == {"A": "no", "B": ""}
    assert (server.python, server.nnodes, server.nproc_per_node) == ("/opt/python", 2, 4)
    assert (server.gpus_per_worker, server.devices) == (2, (*"1234567", "GPU-1"))
    assert (server.ready, server.ready_timeout, server.after) == ("/health", 1800.0, ("data",))
    assert (server.on_failure.value, server.must_finish, server.world) == ("ignore", True, True)
    assert (server.port, list(server.ports)) == (8000, [8000, 8001, 8002, 8003])
    assert server.origin("nnodes") == "rl.yaml:9 services.server.nnodes"
    assert server.origin("ready_timeout") == "rl.yaml:13 services.server.ready.timeout"
    assert server.origin("node_ranks") == "rl.yaml:4 services.server"


@pytest.mark.parametrize(
    ("lines", "kind", "name", "args"),
    [
        (["command: [a, $PORT, '']"], ProgramKind.EXECUTABLE, "a", ("$PORT", "")),
        (["command: [a]"], ProgramKind.EXECUTABLE, "a", ()),
        (["command:", "- a", "- 010"], ProgramKind.EXECUTABLE, "a", ("010",)),
        (
            ["command: a $PORT | tee b"],
            ProgramKind.EXECUTABLE,
            "/bin/sh",
            ("-c", "a $PORT | tee b"),
        ),
        (["command: |", "  a", "  b"], ProgramKind.EXECUTABLE, "/bin/sh", ("-c", "a\nb\n")),
        (["command: a", "args: []"], ProgramKind.EXECUTABLE, "/bin/sh", ("-c", "a")),
        (["command: a", "script:", "args:"], ProgramKind.EXECUTABLE, "/bin/sh", ("-c", "a")),
        (["script: serve.py"], ProgramKind.SCRIPT, "serve.py", ()),
        (["script: serve.py", "args: [1e-3]"], ProgramKind.SCRIPT, "serve.py", ("1e-3",)),
        (["module: pkg.serve", "args: [-v]"], ProgramKind.MODULE, "pkg.serve", ("-v",)),
    ],
)
def test_program_of_a_service(
    lines: list[str], kind: ProgramKind, name: str, args: tuple[str, ...]
) -> None:
    """A list is a command; a text is a command for a shell."""
    assert read_one(*lines).program == WorkerProgram(kind, name, args)


@pytest.mark.parametrize(
    ("value", "ready", "timeout"),
    [
        ("", "", 600.0),
        ("tcp", "tcp", 600.0),
        ("/health/", "/health/", 600.0),
        ("{path: /v1/models}", "/v1/models", 600.0),
        ("{path: /health, timeout: 0.5}", "/health", 0.5),
        ("{path: tcp, timeout: 9}", "tcp", 9.0),
        ("{timeout: 1800}", "tcp", 1800.0),
        ("{}", "tcp", 600.0),
    ],
)
def test_ready(value: str, ready: str, timeout: float) -> None:
    """A path, tcp, or a mapping; with a timeout alone, a connection is enough."""
    service = read_one("command: a", f"ready: {value}")

    assert (service.ready, service.ready_timeout) == (ready, timeout)


@pytest.mark.parametrize(
    ("value", "after"),
    [
        ("a", ("a",)),
        ("a, b", ("a", "b")),
        ("[b, a]", ("b", "a")),
        ("", ()),
        ("[]", ()),
        ("a,", ("a",)),
    ],
)
def test_after(value: str, after: tuple[str, ...]) -> None:
    """One name, several with commas, or a list; an empty value is unset."""
    *_, last = read(f"""\
        services:
          a: {{command: a, ready: tcp}}
          b: {{command: b, ready: /b}}
          c:
            command: c
            after: {value}
        """)

    assert last.after == after


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("nnodes:", [0, 1, 2, 3]),
        ("nnodes: 1", [3]),
        ("nnodes: 4", [0, 1, 2, 3]),
        ("node_ranks: 0", [0]),
        ("node_ranks: [0, 2-3]", [0, 2, 3]),
        ("node_ranks: 2-9", [2, 3]),
    ],
)
def test_nodes_of_a_service(line: str, nodes: list[int]) -> None:
    """``nnodes`` counts from the last node; ``node_ranks`` may include nodes that do not exist."""
    assert read_one("command: a", line).nodes(4) == nodes


def test_services_keep_the_order_of_the_file() -> None:
    """Workers are numbered in this order, whatever ``after`` says."""
    services = read("""\
        services:
          z: {command: a, after: b}
          b: {command: a, ready: tcp}
          a: {command: a}
        """)

    assert [service.name for service in services] == ["z", "b", "a"]


@pytest.mark.parametrize("value", ["", "{}"])
def test_no_services(value: str) -> None:
    """A key without a value is unset."""
    assert read(f"script: train.py\nservices: {value}\n") == ()


# Mistakes of the file.


@pytest.mark.parametrize(
    ("lines", "message", "hint"),
    [
        ([], "2 services.server: a service has one program, but this one has none", ONE_PROGRAM),
        (
            ["command: ''"],
            "2 services.server: a service has one program, but this one has none",
            ONE_PROGRAM,
        ),
        (
            ["command: a", "script: b.py"],
            "2 services.server: a service has one program, but this one has 2",
            ONE_PROGRAM,
        ),
        (
            ["command: a", "script: b.py", "module: c"],
            "2 services.server: a service has one program, but this one has 3",
            ONE_PROGRAM,
        ),
        (
            ["command: [a]", "args: [b]"],
            "4 services.server.args: goes with script or module",
            "write them into command",
        ),
        (
            ["command: []"],
            "3 services.server.command: the command is empty",
            "write [PROGRAM, ARGUMENT, ...]",
        ),
        (
            ["command: ['', a]"],
            "3 services.server.command: the command is empty",
            "write [PROGRAM, ARGUMENT, ...]",
        ),
        (
            ["command: ' '"],
            "3 services.server.command: the command is empty",
            "write [PROGRAM, ARGUMENT, ...]",
        ),
        (
            ["command: {a: b}"],
            "3 services.server.command: a mapping, where a single value is expected",
            QUOTES,
        ),
        (
            ["command: [[a]]"],
            "3 services.server.command: a list, where a single value is expected",
            QUOTES,
        ),
        (
            ["script: [a.py]"],
            "3 services.server.script: a list, where a single value is expected",
            QUOTES,
        ),
        (
            ["kommand: a"],
            "3 services.server.kommand: a service has no such key",
            "did you mean command?",
        ),
        (
            ["command: a", "max_restarts: 3"],
            "4 services.server.max_restarts: a service has no such key",
            KEYS,
        ),
        (
            ["command: a", "ready_timeout: 3"],
            "4 services.server.ready_timeout: a service has no such key",
            KEYS,
        ),
        (
            ["command: a", "command: b"],
            "4 services.server.command: is already at rl.yaml:3",
            "remove one of the two",
        ),
        (
            ["command: a", "nnodes: 0"],
            "4 services.server.nnodes: '0' is not a number of nodes",
            "give a number from 1",
        ),
        (
            ["command: a", "nnodes: 1:2"],
            "4 services.server.nnodes: '1:2' is not a number of nodes",
            "give a number from 1",
        ),
        (
            ["command: a", "nnodes: [1]"],
            "4 services.server.nnodes: a list, where a single value is expected",
            QUOTES,
        ),
        (
            ["command: a", "node_ranks: 0", "nnodes: 1"],
            "5 services.server.nnodes and rl.yaml:4 services.server.node_ranks: both choose the nodes",
            "remove one of the two lines",
        ),
        (
            ["command: a", "node_ranks: 3-1"],
            "4 services.server.node_ranks: '3-1' is not a rank",
            RANKS,
        ),
        (
            ["command: a", "node_ranks: [0, x]"],
            "4 services.server.node_ranks: 'x' is not a rank",
            RANKS,
        ),
        (
            ["command: a", "nproc_per_node: gpu"],
            "4 services.server.nproc_per_node: 'gpu' is not a number of workers",
            "give a number from 1",
        ),
        (
            ["command: a", "nproc_per_node: [2]"],
            "4 services.server.nproc_per_node: a list, where a single value is expected",
            QUOTES,
        ),
        (
            ["command: a", "gpus_per_worker: 0.5"],
            "4 services.server.gpus_per_worker: '0.5' is not a number of GPUs",
            "give a number from 0",
        ),
        (
            ["command: a", "devices: [0, 0]"],
            "4 services.server.devices: '0,0' has a device twice",
            DEVICES,
        ),
        (
            ["command: a", "devices: all"],
            "4 services.server.devices: 'all' is not a list of devices",
            DEVICES,
        ),
        (
            ["command: a", "devices: []"],
            "4 services.server.devices: '' is not a list of devices",
            DEVICES,
        ),
        (
            ["command: a", "nproc_per_node: 2", "gpus_per_worker: 1", "devices: 0-3"],
            f"6 services.server.devices: {TOO_MANY}",
            "remove gpus_per_worker: each worker has the same number of devices",
        ),
        (
            ["command: a", "world: true", "on_failure: restart"],
            (
                "5 services.server.on_failure: starts one worker again, and with world: true"
                " (rl.yaml:4 services.server.world) the others would wait for the one that is gone"
            ),
            "remove on_failure: max_restarts at the top level starts all again",
        ),
        (
            ["command: a", "ready: health"],
            "4 services.server.ready: 'health' is neither tcp nor a path",
            READY,
        ),
        (
            ["command: a", "ready: http://localhost/health"],
            "4 services.server.ready: 'http://localhost/health' is neither tcp nor a path",
            READY,
        ),
        (
            ["command: a", "ready: [/health]"],
            "4 services.server.ready: a list, where a single value is expected",
            QUOTES,
        ),
        (
            ["command: a", "ready: {path: health}"],
            "4 services.server.ready.path: 'health' is neither tcp nor a path",
            READY,
        ),
        (
            ["command: a", "ready: {path: }"],
            "4 services.server.ready.path: '' is neither tcp nor a path",
            READY,
        ),
        (
            ["command: a", "ready: {url: /h}"],
            "4 services.server.ready.url: there is no such key",
            "the keys are path and timeout",
        ),
        (
            ["command: a", "ready:", "  path: /h", "  timeout: 10m"],
            "6 services.server.ready.timeout: '10m' is not a time in seconds",
            "give seconds: 600",
        ),
        (
            ["command: a", "after: db"],
            "4 services.server.after: there is no service db",
            "the services are server",
        ),
        (
            ["command: a", "after: main"],
            "4 services.server.after: there is no service main",
            "the services are server",
        ),
        (
            ["command: a", "after: servr"],
            "4 services.server.after: there is no service servr",
            "did you mean server?",
        ),
        (
            ["command: a", "after: server"],
            "4 services.server.after: nothing says when server is ready",
            "add ready: /health, or ready: tcp, to server (rl.yaml:2 services.server)",
        ),
        (
            ["command: a", "ready: tcp", "after: server"],
            "5 services.server.after: server waits for itself",
            "remove one of the after keys",
        ),
        (
            ["command: a", "after: {a: b}"],
            "4 services.server.after: a mapping, where a single value is expected",
            QUOTES,
        ),
        (
            ["command: a", "on_failure: restrat"],
            "4 services.server.on_failure: 'restrat' is not what follows from a failure",
            "did you mean restart?",
        ),
        (
            ["command: a", "on_failure: 3"],
            "4 services.server.on_failure: '3' is not what follows from a failure",
            "give one of stop, restart, ignore",
        ),
        (
            ["command: a", "must_finish: maybe"],
            "4 services.server.must_finish: 'maybe' is neither yes nor no",
            YES_OR_NO,
        ),
        (
            ["command: a", "world: 2"],
            "4 services.server.world: '2' is neither yes nor no",
            YES_OR_NO,
        ),
        (
            ["command: a", "port: 0"],
            "4 services.server.port: '0' is not a port",
            "give a number from 1 to 65535",
        ),
        (
            ["command: a", "nproc_per_node: 3", "port: 65534"],
            f"5 services.server.port: {TOO_HIGH}",
            "give 65533 or less",
        ),
        (
            ["command: a", "env:", "  RANK: 1"],
            "5 services.server.env.RANK: RANK is a variable that clusterrun sets for each worker",
            "remove it",
        ),
        (
            ["command: a", "env:", "  A: 1", "  PORT: 80"],
            "4 services.server.env.PORT: PORT is a variable that clusterrun sets for each worker",
            "write port: 80 beside env",
        ),
        (
            ["command: a", "env: {A=B: 1}"],
            "4 services.server.env.A=B: 'A=B' is not the name of a variable",
            "write NAME: VALUE",
        ),
        (
            ["command: a", "env: {a-b: 1}"],
            "4 services.server.env.a-b: 'a-b' is not the name of a variable",
            "give letters, digits and _, such as NCCL_DEBUG",
        ),
        (
            ["command: a", "python: [a, b]"],
            "4 services.server.python: a list, where a single value is expected",
            QUOTES,
        ),
    ],
)
def test_wrong_service_is_an_error(lines: list[str], message: str, hint: str) -> None:
    """The message begins with file, line and key."""
    with pytest.raises(UsageError) as caught:
        read_one(*(lines or ["env: {A: 1}"]))

    assert caught.value.exit_code == ExitCode.USAGE
    assert (caught.value.message, caught.value.hint) == (f"rl.yaml:{message}", hint)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "services: [server]",
            "1 services: a list, where lines of NAME: VALUE are expected",
            f"{FOR_EXAMPLE}services:\n    server:\n      command: python server.py",
        ),
        (
            "services: server",
            "1 services: a single value, where lines of NAME: VALUE are expected",
            f"{FOR_EXAMPLE}services:\n    server:\n      command: python server.py",
        ),
        (
            "services: {Server: {command: a}}",
            "1 services.Server: 'Server' can't be the name of a service",
            NAMES,
        ),
        (
            "services: {main: {command: a}}",
            "1 services.main: 'main' can't be the name of a service",
            NAMES,
        ),
        (
            "services: {a-b: {command: a}}",
            "1 services.a-b: 'a-b' can't be the name of a service",
            NAMES,
        ),
        (
            f"services: {{{'a' * 33}: {{command: a}}}}",
            f"1 services.{'a' * 33}: '{'a' * 33}' can't be the name of a service",
            NAMES,
        ),
        (
            "services:\n  a: {command: a}\n  a: {command: b}",
            "3 services.a: is already at rl.yaml:2",
            "remove one of the two",
        ),
        (
            "services:\n  a: {command: a, after: b}\n  b: {command: b}",
            "2 services.a.after: nothing says when b is ready",
            "add ready: /health, or ready: tcp, to b (rl.yaml:3 services.b)",
        ),
        (
            "services:\n  a: {command: a, after: [b, c]}\n  b: {command: b, ready: tcp}",
            "2 services.a.after: there is no service c",
            "the services are a, b",
        ),
        (
            f"services:\n{CYCLE}",
            "2 services.a.after: a and b wait for each other",
            "remove one of the after keys",
        ),
        (
            # Another one waits for the circle, and is not in it.
            f"services:\n  x: {{command: x, after: a}}\n{CYCLE}",
            "3 services.a.after: a and b wait for each other",
            "remove one of the after keys",
        ),
        (
            "node_ranks: 0",
            (
                "1 node_ranks: applies only to a job with services, where it lists the nodes that run"
                " the main program"
            ),
            "remove the line, or write node_rank for the rank of this node",
        ),
        ("servics: {a: {command: a}}", "1 servics: there is no such key", "did you mean services?"),
    ],
)
def test_wrong_services_are_errors(text: str, message: str, hint: str) -> None:
    """Names, the order of starts, and keys at the top level."""
    with pytest.raises(UsageError) as caught:
        read(f"{text}\n")

    assert caught.value.exit_code == ExitCode.USAGE
    assert (caught.value.message, caught.value.hint) == (f"rl.yaml:{message}", hint)


# A job with services.

TWO_NODES = {"nnodes": "2", "node_rank": "0", "master_addr": "node0"}


@pytest.mark.usefixtures("script")
def test_job_with_services() -> None:
    """Flags set options of the main program; ``node_ranks`` sets its nodes."""
    job = describe_job(
        """\
        script: train.py
        node_ranks: 0
        max_restarts: 2
        services:
          server: {command: serve, nproc_per_node: 3}
        """,
        **TWO_NODES,
        nproc_per_node="4",
    )

    assert [service.name for service in job.services] == ["server"]
    assert job.main_nodes == RankSet(((0, 0),))
    assert (job.script.name, job.workers.nproc_per_node, job.failures.max_restarts) == (
        "train.py",
        4,
        2,
    )


@pytest.mark.usefixtures("script")
def test_devices_do_not_set_the_number_of_main_workers() -> None:
    """The devices are for all programs; without services, each worker has one."""
    text = "script: train.py\ndevices: 0-3\n"

    alone = describe_job(text)
    beside = describe_job(f"{text}services: {{s: {{command: a}}}}\n")

    assert alone.workers.nproc_per_node == 4
    assert beside.setting("nproc_per_node") == Setting(WorkerCount.PER_GPU, "default")


@pytest.mark.usefixtures("script")
def test_job_without_services() -> None:
    job = describe_job("script: train.py\n")

    assert (job.services, job.main_nodes) == ((), None)


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(
    "services",
    [
        ["a: {command: a, port: 8000}", "b: {command: b, port: 8002}"],
        ["a: {command: a, port: 8000, nnodes: 1}", "b: {command: b, port: 8000, node_ranks: 0}"],
        ["a: {command: a, port: 8000}", "b: {command: b}"],
    ],
)
def test_ports_that_do_not_collide(services: list[str]) -> None:
    """Services on different nodes may have the same port."""
    lines = "\n".join(f"  {line}" for line in services)

    job = describe_job(f"script: train.py\nservices:\n{lines}\n", **TWO_NODES)

    assert len(job.services) == 2


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(
    ("head", "service", "flags", "message", "hint"),
    [
        (
            "",
            "command: a, nnodes: 3",
            TWO_NODES,
            "rl.yaml:4 services.s.nnodes: 3 nodes, but the job has 2 (--nnodes)",
            "give 2 or fewer",
        ),
        (
            "",
            "command: a, node_ranks: 2-5",
            TWO_NODES,
            "rl.yaml:4 services.s.node_ranks: there is no node 2-5: the job has 2 (--nnodes)",
            "ranks go from 0 to 1",
        ),
        (
            "node_ranks: 7",
            "command: a",
            TWO_NODES,
            "rl.yaml:2 node_ranks: there is no node 7: the job has 2 (--nnodes)",
            "ranks go from 0 to 1",
        ),
        (
            "node_ranks: last",
            "command: a",
            TWO_NODES,
            "rl.yaml:2 node_ranks: 'last' is not a rank",
            RANKS,
        ),
        (
            "",
            "command: a",
            {"nnodes": "1:2", "master_addr": "node0"},
            "rl.yaml:4 services.s: a job with services can't have --nnodes",
            "give one number of nodes: --nnodes 2",
        ),
        (
            "spares: 1",
            "command: a",
            TWO_NODES,
            "rl.yaml:4 services.s: a job with services can't have rl.yaml:2 spares",
            "remove it",
        ),
        (
            "rejoin_timeout: 60",
            "command: a",
            TWO_NODES,
            "rl.yaml:4 services.s: a job with services can't have rl.yaml:2 rejoin_timeout",
            "remove it",
        ),
        (
            "",
            "command: a",
            {"exec": "true"},
            "rl.yaml:4 services.s: a job with services can't have --exec",
            "remove it",
        ),
        (
            "",
            "command: a",
            {"pdb": "true"},
            "rl.yaml:4 services.s: a job with services can't have --pdb",
            "remove it",
        ),
        (
            "env: {PORT: 1}",
            "command: a",
            {},
            "rl.yaml:2 env.PORT: PORT is a variable that clusterrun sets for each worker",
            "remove it; a service may say port: 8000",
        ),
        (
            "",
            "command: a, on_failure: restart",
            {},
            (
                "rl.yaml:4 services.s.on_failure: never restarts a worker, because max_restarts is 0"
                " (default)"
            ),
            "add max_restarts: 3 at the top level, the most for each worker",
        ),
        (
            "",
            "command: a",
            {"cluster": "paddle"},
            "rl.yaml:4 services.s: a job with services can't have --cluster",
            "add --cluster none",
        ),
    ],
)
def test_wrong_job_with_services_is_an_error(
    head: str, service: str, flags: dict[str, str], message: str, hint: str
) -> None:
    """Values that depend on the number of nodes, and incompatible options."""
    Path("rl.yaml").write_text(f"script: train.py\n{head}\nservices:\n  s: {{{service}}}\n")

    assert mistake(flags={"config": "rl.yaml", **flags}) == (message, hint)


def test_services_with_script_on_standard_input_is_an_error() -> None:
    Path("rl.yaml").write_text("script: '-'\nservices: {s: {command: a}}\n")

    assert mistake(flags={"config": "rl.yaml"}) == (
        "rl.yaml:2 services.s: a job with services can't have rl.yaml:1 script",
        "save the script to a file",
    )


@pytest.mark.usefixtures("script")
def test_services_with_several_tasks_per_node_is_an_error() -> None:
    """Each agent of a node would start its services."""
    Path("rl.yaml").write_text("script: train.py\nservices: {s: {command: a}}\n")
    environ = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    }

    message, hint = mistake(flags={"config": "rl.yaml"}, environ=environ)

    assert message == (
        "rl.yaml:2 services.s: services need one agent for each node, but this node has 4 tasks"
        " (OMPI_COMM_WORLD_LOCAL_SIZE)"
    )
    assert hint == "start one task on each node: mpirun --map-by ppr:1:node clusterrun ..."


@pytest.mark.usefixtures("script")
def test_two_services_with_the_same_port_is_an_error() -> None:
    """The second worker of a service has the next port."""
    Path("rl.yaml").write_text(
        dedent("""\
            script: train.py
            services:
              a: {command: a, port: 8000, nproc_per_node: 2}
              b: {command: b, port: 8001, nnodes: 1}
            """)
    )

    assert mistake(flags={"config": "rl.yaml", **TWO_NODES}) == (
        "rl.yaml:3 services.a.port and rl.yaml:4 services.b.port: both have port 8001 on node 1",
        ANOTHER_PORT,
    )


# Imports.

SERVICE_MODULES = (
    *("clusterrun.job.services", "clusterrun.planning.services"),
    *("clusterrun.policy.service_progress", "clusterrun.run.reserved_ports"),
    "clusterrun.run.readiness",
)


def imported_service_modules(text: str) -> list[str]:
    """Return which of ``SERVICE_MODULES`` the agent of a job imports until it ends."""
    Path("rl.yaml").write_text(dedent(text))
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-P", "-m", "clusterrun", "--config", "rl.yaml"],
        env=plain_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported = set(re.findall(r"(?m)^import time: .*\| +([\w.]+)$", done.stderr))
    assert "clusterrun.run.agent" in imported
    return [name for name in SERVICE_MODULES if name in imported]


@pytest.mark.usefixtures("script")
def test_job_without_services_does_not_import_them() -> None:
    assert imported_service_modules("script: train.py\nnproc_per_node: 1\n") == []


@pytest.mark.usefixtures("script")
def test_job_with_services_imports_them() -> None:
    """Otherwise the test above could not fail."""
    imported = imported_service_modules("""\
        script: train.py
        nproc_per_node: 1
        services:
          server:
            command: [python3, -m, http.server, $PORT]
            ready: tcp
        """)

    assert imported == list(SERVICE_MODULES)
