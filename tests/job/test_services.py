"""Services of a job file: keys, values, defaults. Errors and options are in lines/services.txt."""

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
from clusterrun.job.declarations import Setting
from clusterrun.job.job import ProgramKind, WorkerProgram
from clusterrun.job.job_file import read_job_file

from tests.contract.launched import plain_environment


def read(text: str) -> tuple[Any, ...]:
    """Return the services of a file rl.yaml with this text."""
    Path("rl.yaml").write_text(dedent(text))
    return read_job_file(Setting("rl.yaml", "--config")).services


def test_defaults_of_a_service() -> None:
    (service,) = read("services:\n  server: {command: [trl, vllm-serve]}\n")

    assert (service.name, service.where) == ("server", "rl.yaml:2 services.server")
    assert (service.nnodes, service.node_ranks) == (None, None)
    assert (service.nproc_per_node, service.gpus_per_worker, service.devices) == (1, 0, ())
    assert (service.ready, service.ready_timeout, service.after) == ("", 600.0, ())
    assert (service.on_failure.value, service.must_finish, service.world) == ("stop", False, False)
    assert (service.python, service.env, service.port) == ("", {}, None)


def test_all_keys_of_a_service() -> None:
    """The origin of a value has file, line and key; for a default, the line of the service."""
    data, server = read(
        """\
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
            """
    )

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
    assert server.origin("nnodes") == "rl.yaml:8 services.server.nnodes"
    assert server.origin("ready_timeout") == "rl.yaml:12 services.server.ready.timeout"
    assert server.origin("node_ranks") == "rl.yaml:3 services.server"


def executable(name: str, *args: str) -> dict[str, object]:
    return {"program": WorkerProgram(ProgramKind.EXECUTABLE, name, args)}


def ready(how: str, seconds: float) -> dict[str, object]:
    return {"ready": how, "ready_timeout": seconds}


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        # A list is a command; a text is a command for a shell.
        ("command: [a, $PORT, '']", executable("a", "$PORT", "")),
        ("command: [a]", executable("a")),
        ("command:\n- a\n- 010", executable("a", "010")),
        ("command: a $PORT | tee b", executable("/bin/sh", "-c", "a $PORT | tee b")),
        ("command: |\n  a\n  b", executable("/bin/sh", "-c", "a\nb\n")),
        ("command: a\nargs: []", executable("/bin/sh", "-c", "a")),
        ("command: a\nscript:\nargs:", executable("/bin/sh", "-c", "a")),
        ("script: a.py", {"program": WorkerProgram(ProgramKind.SCRIPT, "a.py", ())}),
        ("script: a.py\nargs: [1e-3]", {"program": WorkerProgram(ProgramKind.SCRIPT, "a.py", ("1e-3",))}),
        ("module: a.b\nargs: [-v]", {"program": WorkerProgram(ProgramKind.MODULE, "a.b", ("-v",))}),
        # A path, tcp, or a mapping; with a timeout alone, a connection is enough.
        ("command: a\nready:", ready("", 600.0)),
        ("command: a\nready: tcp", ready("tcp", 600.0)),
        ("command: a\nready: /health/", ready("/health/", 600.0)),
        ("command: a\nready: {path: /v1/models}", ready("/v1/models", 600.0)),
        ("command: a\nready: {path: /health, timeout: 0.5}", ready("/health", 0.5)),
        ("command: a\nready: {path: tcp, timeout: 9}", ready("tcp", 9.0)),
        ("command: a\nready: {timeout: 1800}", ready("tcp", 1800.0)),
        ("command: a\nready: {}", ready("tcp", 600.0)),
        # One name, several with commas, or a list; an empty value is unset.
        ("command: a\nafter: one", {"after": ("one",)}),
        ("command: a\nafter: one, two", {"after": ("one", "two")}),
        ("command: a\nafter: [two, one]", {"after": ("two", "one")}),
        ("command: a\nafter:", {"after": ()}),
        ("command: a\nafter: []", {"after": ()}),
        ("command: a\nafter: one,", {"after": ("one",)}),
    ],
)  # fmt: skip
def test_values_of_keys(keys: str, values: dict[str, object]) -> None:
    """Beside two services that can be waited for; the order is the file's, whatever ``after`` says."""
    service, *others = read(
        f"services:\n  server:\n{indent(keys, ' ' * 4)}\n"
        "  one: {command: a, ready: tcp}\n  two: {command: b, ready: /b}\n"
    )

    assert {name: getattr(service, name) for name in values} == values
    assert [other.name for other in others] == ["one", "two"]


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
    (service,) = read(f"services:\n  server:\n    command: a\n    {line}\n")

    assert service.nodes(4) == nodes


@pytest.mark.parametrize("value", ["", "{}"])
def test_no_services(value: str) -> None:
    """A key without a value is unset."""
    assert read(f"script: train.py\nservices: {value}\n") == ()


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
def test_only_a_job_with_services_imports_their_modules() -> None:
    main = "script: train.py\nnproc_per_node: 1\n"
    server = "services: {server: {command: [python3, -m, http.server, $PORT], ready: tcp}}\n"

    assert imported_service_modules(main) == []
    assert imported_service_modules(main + server) == list(SERVICE_MODULES)
