"""What workers get from each source of options, and jobs that run at the same time."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from clusterrun.ports import program

from tests.contract.launched import COMMAND, MARK, Launcher, plain_environment
from tests.contract.worker_scripts import RANKS_RENDEZVOUS

PLAIN_LOCALE = {"LC_ALL": "C.UTF-8"}
"""In other locales Python may set LC_CTYPE for the processes that it starts."""

WRITES_ENVIRONMENT = """
    import json, os, sys
    start = {"argv": sys.argv, "python": sys.executable, "environ": dict(os.environ)}
    with open(f"{sys.argv[1]}-{os.environ['RANK']}.json", "w") as file:
        json.dump(start, file)
"""

RENDEZVOUS = f"""{RANKS_RENDEZVOUS}
    (other,) = calls
    own_id = os.environ["TORCHELASTIC_RUN_ID"].encode()
    other.sendall(own_id)
    other.shutdown(socket.SHUT_WR)
    peer_id = b"".join(iter(lambda: other.recv(100), b""))
    assert peer_id == own_id, f"{{own_id}} connected to {{peer_id}}"
    print("port", address[1], flush=True)
"""

RENDEZVOUS_BY_TORCH = """
    import os
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    ids = [None] * dist.get_world_size()
    dist.all_gather_object(ids, os.environ["TORCHELASTIC_RUN_ID"])
    assert set(ids) == {os.environ["TORCHELASTIC_RUN_ID"]}, ids
    print("port", os.environ["MASTER_PORT"], flush=True)
    dist.destroy_process_group()
"""

PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3", "python3.13", "python3.12", "python3.11")


@pytest.mark.parametrize(
    "script", [RENDEZVOUS, pytest.param(RENDEZVOUS_BY_TORCH, marks=pytest.mark.long)]
)
def test_ten_jobs_at_once_have_their_own_ports(clusterrun: Launcher, script: str) -> None:
    jobs = [clusterrun.script(script, f"--run-id=job{number}", workers=2) for number in range(10)]

    codes = [job.ended(100).code for job in jobs]

    ports = [set(job.numbers("port", 2)) for job in jobs]
    assert codes == [0] * 10
    assert [len(port) for port in ports] == [1] * 10
    assert len(set.union(*ports)) == 10


def test_port_in_use_is_an_error(clusterrun: Launcher) -> None:
    """No worker starts, and no file is created."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        job = clusterrun.script(
            WRITES_ENVIRONMENT, f"--master-port={port}", "--log-dir=logs", args=["worker"]
        )
        ended = job.ended()

    error = (
        f"clusterrun: error: port {port} (--master-port) is in use on this machine by"
        f" {program(os.getpid())}\n"
        "  stop the program that listens there, set another port, or remove --master-port:\n"
        "  on one machine, or with --rdzv-endpoint, a free port is chosen\n"
    )
    assert ended == (4, "", error)
    assert [path.name for path in clusterrun.folder.iterdir()] == ["script0.py"]


def test_worker_gets_exactly_the_documented_variables(clusterrun: Launcher) -> None:
    """Inherited variables are passed on."""
    job = clusterrun.script(
        WRITES_ENVIRONMENT,
        "--run-id=digits",
        "--max-restarts=3",
        workers=2,
        args=["worker", "--lr", "0.1"],
        environ={**PLAIN_LOCALE, "USERS_OWN": "yes", "OMP_NUM_THREADS": "7"},
    )

    code = job.ended().code

    start = start_of(clusterrun, "worker-1")
    given = added_to(start["environ"])
    port, error_file = int(given.pop("MASTER_PORT")), given.pop("TORCHELASTIC_ERROR_FILE")
    page = given.pop("CLUSTERRUN_SUSPEND_PAGE")
    assert code == 0
    assert start["argv"][1:] == ["worker", "--lr", "0.1"]
    assert given == {
        "USERS_OWN": "yes",
        "OMP_NUM_THREADS": "7",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "ROLE_RANK": "1",
        "GROUP_RANK": "0",
        "NODE_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "digits",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "CLUSTERRUN_RESUMED": "0",
    }
    assert re.fullmatch(r"/.+/attempt-0/suspend:1", page)
    assert 1024 <= port < 65536
    assert re.fullmatch(r"/.+/attempt-0/rank-1/error\.json", error_file)


def test_variables_are_those_of_torchrun(clusterrun: Launcher) -> None:
    """There are some more. Values differ only where each run chooses them."""
    job = clusterrun.script(WRITES_ENVIRONMENT, workers=2, args=["ours"], environ=PLAIN_LOCALE)
    code = job.ended().code
    subprocess.run(
        [Path(sys.executable).with_name("torchrun"), "--nproc-per-node=2", "script0.py", "theirs"],
        cwd=clusterrun.folder,
        env={**plain_environment(), **PLAIN_LOCALE},
        capture_output=True,
        timeout=100,
        check=True,
    )

    ours = added_to(start_of(clusterrun, "ours-1")["environ"])
    theirs = added_to(start_of(clusterrun, "theirs-1")["environ"])
    differing = {name for name in theirs if ours.get(name) != theirs[name]}
    assert code == 0
    assert set(ours) - set(theirs) == {"NODE_RANK", "CLUSTERRUN_RESUMED", "CLUSTERRUN_SUSPEND_PAGE"}
    assert differing <= {
        "MASTER_ADDR",  # torchrun's is "localhost", which may be ::1 first
        "MASTER_PORT",
        "OMP_NUM_THREADS",  # torchrun's is 1
        "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",  # torchrun's agent serves a store
    }


def test_flags_override_variables_and_variables_the_job_file(clusterrun: Launcher) -> None:
    (clusterrun.folder / "writes_start.py").write_text(dedent(WRITES_ENVIRONMENT))
    (clusterrun.folder / "job.yaml").write_text(
        dedent("""
            script: writes_start.py
            args: [worker, --lr, 010]
            nproc_per_node: 4
            max_restarts: 5
            run_id: from the file
            env:
              SET_BY: the file
              ONLY_THERE: no
        """)
    )

    job = clusterrun.command(
        "--config=job.yaml",
        "--max-restarts=1",
        "--env=SET_BY=the flag",
        environ={
            "CLUSTERRUN_NPROC_PER_NODE": "2",
            "PET_NPROC_PER_NODE": "3",
            "PET_MAX_RESTARTS": "4",
            "SET_BY": "the shell",
            "ONLY_THERE": "the shell",
        },
    )

    code = job.ended().code

    start = start_of(clusterrun, "worker-1")
    environ = start["environ"]
    assert code == 0
    assert start["argv"] == ["writes_start.py", "worker", "--lr", "010"]
    assert environ["WORLD_SIZE"] == "2"
    assert environ["TORCHELASTIC_MAX_RESTARTS"] == "1"
    assert environ["TORCHELASTIC_RUN_ID"] == "from the file"
    assert (environ["SET_BY"], environ["ONLY_THERE"]) == ("the flag", "no")


@pytest.mark.parametrize("set_by", ["--python", "PYTHON_EXEC"])
def test_workers_run_on_the_chosen_interpreter(clusterrun: Launcher, set_by: str) -> None:
    """Nothing of the launcher's interpreter is needed."""
    python = another_python()
    options = ["--python", python] if set_by == "--python" else []
    environ = {set_by: python} if set_by == "PYTHON_EXEC" else {}
    job = clusterrun.script(
        WRITES_ENVIRONMENT, *options, workers=2, args=["worker"], environ=environ
    )

    code = job.ended().code

    assert code == 0
    assert start_of(clusterrun, "worker-1")["python"] == python


def test_launch_inside_a_worker_is_a_separate_job(clusterrun: Launcher) -> None:
    (clusterrun.folder / "inner.py").write_text(dedent(WRITES_ENVIRONMENT))
    ended = clusterrun.script(
        """
        import os, subprocess, sys
        subprocess.run([sys.argv[1], "--nproc-per-node=3", "inner.py", f"in-{os.environ['RANK']}"])
        """,
        workers=2,
        args=[COMMAND],
        environ={"CLUSTERRUN_RUN_ID": "outer", "PET_MAX_RESTARTS": "5"},
    ).ended()

    inner = [start_of(clusterrun, f"in-{outer}-2")["environ"] for outer in (0, 1)]
    assert ended.code == 0
    notices = {line for line in ended.err.splitlines() if "another job" in line}
    assert notices == {
        f"[rank {rank}] clusterrun: started inside a worker of another job"
        " (LOCAL_RANK and TORCHELASTIC_RUN_ID are set): that job's worker variables,"
        " CLUSTERRUN_* and PET_* are ignored and not passed on"
        for rank in (0, 1)
    }
    assert [(it["RANK"], it["WORLD_SIZE"]) for it in inner] == [("2", "3")] * 2
    assert {it["TORCHELASTIC_MAX_RESTARTS"] for it in inner} == {"0"}
    assert len({"outer", *(it["TORCHELASTIC_RUN_ID"] for it in inner)}) == 3
    assert len({it["MASTER_PORT"] for it in inner}) == 2
    names = {name for it in inner for name in it if name.startswith(("CLUSTERRUN_", "PET_"))}
    assert names == {"CLUSTERRUN_RESUMED", "CLUSTERRUN_SUSPEND_PAGE"}
    assert len({it["CLUSTERRUN_SUSPEND_PAGE"] for it in inner}) == 2


@pytest.mark.needs("root", "unshare")
def test_missing_loopback_interface_is_a_warning(clusterrun: Launcher) -> None:
    ended = clusterrun.script("print('alone')", around=("unshare", "--net")).ended()

    assert (ended.code, ended.out) == (0, "alone\n")
    assert ended.err == (
        "clusterrun: warning: this machine can't reach itself at 127.0.0.1: Network is unreachable,"
        " so ranks can't connect to each other; as root: ip link set lo up\n"
    )


def start_of(clusterrun: Launcher, worker: str) -> dict[str, Any]:
    """Return what a worker of ``WRITES_ENVIRONMENT`` has written."""
    found: dict[str, Any] = json.loads((clusterrun.folder / f"{worker}.json").read_text())
    return found


def added_to(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a worker has in addition to its launcher."""
    base = {**plain_environment(), **PLAIN_LOCALE, MARK: environ.get(MARK)}
    return {name: value for name, value in environ.items() if base.get(name) != value}


def another_python() -> str:
    """Return the path of another interpreter; the test is skipped without one."""
    for name in PYTHONS:
        path = shutil.which(name)
        if path and runs_elsewhere(path):
            return path
    pytest.skip(f"none of {', '.join(PYTHONS)} was found")


def runs_elsewhere(python: str) -> bool:
    """Return whether ``python`` runs and has its own modules."""
    command = [python, "-c", "import sys; print(sys.prefix, sys.executable)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode == 0 and done.stdout.split() != [sys.prefix, python]
