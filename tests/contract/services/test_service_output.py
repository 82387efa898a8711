"""What people and programs see of a job with services: log files, events, the dry run, status and stacks."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.contract.launched import Launcher
from tests.contract.services.job_files import WAITS, asking, started

TWO_SERVERS = """
    script: train.py
    nproc_per_node: 2
    services:
      server: {command: [python, server.py], nproc_per_node: 2, ready: /health}
"""

LOADS = """
    script: train.py
    services:
      server: {command: "echo loads; exec sleep 1000", ready: tcp}
"""


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    """Return a name that no other job has."""
    return f"services-{os.getpid()}-{tmp_path.name[-20:]}"


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    """Return the variable that gives the jobs of the test a folder of their own."""
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def events_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_log_files(clusterrun: Launcher) -> None:
    """One for each worker and stream, by the name of its program; the screen has the lines, too."""
    job = started(clusterrun, TWO_SERVERS, "print('trained')", "--log-dir=logs", "--run-id=r")

    ended = job.ended()

    assert ended.code == 0
    (folder,) = (clusterrun.folder / "logs/r/attempt-0").iterdir()
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    names = {"rank-0", "rank-1", "server-0", "server-1"}
    assert texts.keys() == {f"{name}.{ending}" for name in names for ending in ("out", "err")}
    assert [texts[f"rank-{rank}.out"] for rank in (0, 1)] == ["trained\n"] * 2
    for rank in (0, 1):
        assert re.fullmatch(r"listens \d+\n", texts[f"server-{rank}.out"])
        assert f"[server {rank}] {texts[f'server-{rank}.out']}" in ended.out


def test_a_report_names_the_log_of_a_server(clusterrun: Launcher) -> None:
    """Where more of it is."""
    job_file = """
        script: train.py
        services:
          server: {command: "echo no memory >&2; exit 3", ready: tcp}
    """
    ended = started(clusterrun, job_file, "", "--log-dir=logs", "--run-id=r").ended()

    assert ended.code == 3
    assert re.search(r"\n  its log: \S+/logs/r/attempt-0/\S+/server-0\.err\n", ended.err)


def test_events(clusterrun: Launcher) -> None:
    """Each names the service and the worker's number in it; a service becomes ready before ranks start."""
    job = started(clusterrun, TWO_SERVERS, "print('trained')", "--events=events")

    assert job.ended().code == 0
    events = events_in(clusterrun.folder / "events")
    programs = [
        (each["event"], each.get("service", ""), each.get("service_rank")) for each in events
    ]
    assert (programs[0], events[0]["workers"]) == (("joined", "", None), 4)
    for rank in (0, 1):
        assert programs.index(("started", "server", rank)) < programs.index(
            ("ready", "server", rank)
        )
        assert programs.index(("ready", "server", rank)) < programs.index(("started", "", None))
    stopped = [each for each in events if each.get("stopped")]
    assert {(each["service"], each["service_rank"]) for each in stopped} == {
        ("server", 0),
        ("server", 1),
    }
    assert {(each["event"], each["signal"]) for each in stopped} == {("exited", signal.SIGTERM)}
    assert (events[-1]["event"], events[-1]["code"]) == ("ended", 0)


def test_events_of_a_server_that_fails(clusterrun: Launcher) -> None:
    """The event "failed" names it."""
    script = asking("ask('/exit/7'); time.sleep(1000)")
    job = started(
        clusterrun, TWO_SERVERS.replace("nproc_per_node: 2\n", "\n", 1), script, "--events=events"
    )

    assert job.ended().code == 7
    events = events_in(clusterrun.folder / "events")
    (failed,) = [each for each in events if each["event"] == "failed"]
    assert (failed["service"], failed["service_rank"], failed["code"]) == ("server", 0, 7)
    assert events[-1]["cause"]["pid"] == failed["pid"]
    assert events[-1]["reason"] == "worker failed"


def test_status(clusterrun: Launcher, run_id: str, runtime: dict[str, str]) -> None:
    """A row for each worker, by its name; the main program's number of ranks in the first line."""
    job = started(clusterrun, TWO_SERVERS, WAITS, "--run-id", run_id, environ=runtime)
    job.wait_for("trains", 2)

    # Columns are left out on a narrow terminal.
    wide = {**runtime, "COLUMNS": "200"}
    ended = clusterrun.command("status", run_id, environ=wide).ended()

    assert ended.code == 0
    first, _, *rows = ended.out.splitlines()
    assert first.startswith(f"run {run_id}: train.py, attempt 0, running, 1 node, 2 ranks, ")
    named = [re.split(r" {2,}", row) for row in rows]
    assert [(row[0], row[3]) for row in named] == [
        ("0", "running"),
        ("1", "running"),
        ("server 0", "running"),
        ("server 1", "running"),
    ]
    assert [row[-1].split()[0] for row in named] == ["trains", "trains", "listens", "listens"]


def test_status_of_a_job_that_waits(
    clusterrun: Launcher, run_id: str, runtime: dict[str, str]
) -> None:
    """It says for whom; and a notice says so after a while, here too long for a test."""
    job = started(clusterrun, LOADS, WAITS, "--run-id", run_id, environ=runtime)
    job.wait_for("loads")

    ended = clusterrun.command("status", run_id, environ=runtime).ended()

    assert ended.code == 0
    assert re.search(r"(?m)^0 .*  waits for server  ", ended.out)
    assert re.search(r"(?m)^server 0 .*  running  .*  loads$", ended.out)


def test_stacks(clusterrun: Launcher, run_id: str, runtime: dict[str, str]) -> None:
    """Those of ranks and of services, each by its name."""
    job_file = """
        script: train.py
        nproc_per_node: 2
        services:
          judge: {script: judges.py}
    """
    judges = "import time\nprint('judges', flush=True)\ntime.sleep(1000)\n"
    job = started(
        clusterrun,
        job_file,
        WAITS,
        "--run-id",
        run_id,
        files={"judges.py": judges},
        environ=runtime,
    )
    job.wait_for("trains", 2)
    job.wait_for("judges")

    ended = clusterrun.command("stacks", run_id, environ=runtime).ended()

    assert ended.code == 0
    assert re.search(r"(?m)^  ranks 0-1:\n +File \".*train\.py\", line \d in <module>$", ended.out)
    assert re.search(
        r"(?m)^  judge rank 0:\n +File \".*judges\.py\", line 3 in <module>$", ended.out
    )


def test_stop(clusterrun: Launcher, run_id: str, runtime: dict[str, str]) -> None:
    """By its name, as any job."""
    job = started(clusterrun, TWO_SERVERS, WAITS, "--run-id", run_id, environ=runtime)
    job.wait_for("trains", 2)

    assert clusterrun.command("stop", run_id, environ=runtime).ended().code == 0

    assert job.ended().code == 143
    assert job.left() == []


def test_the_dry_run(clusterrun: Launcher) -> None:
    """Each service with its line of the file, its workers, what differs in their variables, its command."""
    job = started(clusterrun, TWO_SERVERS, "", "--dry-run", "--run-id=mine")

    ended = job.ended()

    assert (ended.code, ended.err) == (0, "")
    assert re.search(
        r"(?m)^service server \(job\.yaml:5 services\.server\)\n"
        r"  nproc_per_node +2 +job\.yaml:5 services\.server\.nproc_per_node\n"
        r"  ready +/health +job\.yaml:5 services\.server\.ready\n",
        ended.out,
    )
    table = ended.out.partition("\nworkers of ")[2].partition("\n\n")[0].splitlines()[2:]
    assert [re.split(r" {2,}", row.strip())[:2] for row in table] == [
        ["0", "0"],
        ["1", "1"],
        ["server 0", "2"],
        ["server 1", "3"],
    ]
    own = ended.out.partition("\nvariables of server rank 0\n")[2].partition("\n\n")[0]
    variables = dict(line.split(None, 1) for line in own.splitlines())
    assert variables["ROLE_NAME"] == "server"
    assert variables["PORT"] == "chosen at the start"
    assert "RANK" not in variables
    assert re.search(r"\ncommand of server ranks? 0\S*\n  python server\.py\n", ended.out)


def test_the_dry_run_as_json(clusterrun: Launcher) -> None:
    """For programs: services are objects, as all else."""
    job = started(clusterrun, TWO_SERVERS, "", "--dry-run", "--json", "--run-id=mine")

    ended = job.ended()

    assert (ended.code, ended.err) == (0, "")
    plan = json.loads(ended.out)
    workers = [(each["rank"], each.get("service"), each["command"][-1]) for each in plan["workers"]]
    assert workers == [
        (0, None, "train.py"),
        (1, None, "train.py"),
        (2, "server", "server.py"),
        (3, "server", "server.py"),
    ]
    assert "RANK" not in plan["workers"][2]["env"]


def test_services_in_json(clusterrun: Launcher) -> None:
    """By name, with the values and where each was set."""
    job = started(clusterrun, TWO_SERVERS, "", "--dry-run", "--json")

    shown = json.loads(job.ended().out)

    assert set(shown["services"]) == {"server"}
    assert shown["services"]["server"]["nproc_per_node"]["value"] == "2"
    assert re.fullmatch(
        r".*:\d+ services.server.ready", shown["services"]["server"]["ready"]["origin"]
    )
    assert {each["env"]["PORT"] for each in shown["workers"]} == {None}


def test_a_job_without_services_shows_none(clusterrun: Launcher) -> None:
    """Its dry run is as it was before there were services."""
    ended = started(clusterrun, "script: train.py", "", "--dry-run").ended()

    assert ended.code == 0
    assert not re.search(r"(?m)^ *(services?|main_nodes|PORT|CLUSTERRUN_MAIN_\w+)\b", ended.out)


def test_a_job_without_services_has_none_in_json(clusterrun: Launcher) -> None:
    """Programs that read it find what they have always found."""
    ended = started(clusterrun, "script: train.py", "", "--dry-run", "--json").ended()

    shown = json.loads(ended.out)
    assert set(shown) == {"job", "workers", "assumed"}
    assert shown["job"].keys().isdisjoint({"services", "main_nodes", "node_ranks"})
    assert "service" not in shown["workers"][0]
