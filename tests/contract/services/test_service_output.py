"""Output of a job with services: log files, events, dry run, status and stacks."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.contract.launched import Launcher, read_events
from tests.contract.services.job_files import WAITS, start_job

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


def test_log_files_are_named_after_programs(clusterrun: Launcher) -> None:
    """The lines are printed, too."""
    job = start_job(clusterrun, TWO_SERVERS, "print('trained')", "--log-dir=logs", "--run-id=r")

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


def test_events_name_service_and_rank(clusterrun: Launcher) -> None:
    """A service is ready before ranks start."""
    job = start_job(clusterrun, TWO_SERVERS, "print('trained')", "--events=events")

    assert job.ended().code == 0
    events = read_events(clusterrun.folder / "events")
    programs = [
        (event["event"], event.get("service", ""), event.get("service_rank")) for event in events
    ]
    assert (programs[0], events[0]["workers"]) == (("joined", "", None), 4)
    for rank in (0, 1):
        assert programs.index(("started", "server", rank)) < programs.index(
            ("ready", "server", rank)
        )
        assert programs.index(("ready", "server", rank)) < programs.index(("started", "", None))
    stopped = [event for event in events if event.get("stopped")]
    assert {(event["service"], event["service_rank"]) for event in stopped} == {
        ("server", 0),
        ("server", 1),
    }
    assert {(event["event"], event["signal"]) for event in stopped} == {("exited", signal.SIGTERM)}
    assert (events[-1]["event"], events[-1]["code"]) == ("ended", 0)


def test_status_has_a_row_for_each_worker(
    clusterrun: Launcher, run_id: str, runtime: dict[str, str]
) -> None:
    """The first line counts only the ranks of the main program."""
    job = start_job(clusterrun, TWO_SERVERS, WAITS, "--run-id", run_id, environ=runtime)
    job.wait_for("trains", 2)

    # A narrow terminal has fewer columns.
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


def test_status_of_rank_that_waits_for_a_server(
    clusterrun: Launcher, run_id: str, runtime: dict[str, str]
) -> None:
    job = start_job(clusterrun, LOADS, WAITS, "--run-id", run_id, environ=runtime)
    job.wait_for("loads")

    ended = clusterrun.command("status", run_id, environ=runtime).ended()

    assert ended.code == 0
    assert re.search(r"(?m)^0 .*  waits for server  ", ended.out)
    assert re.search(r"(?m)^server 0 .*  running  .*  loads$", ended.out)


def test_stacks_of_ranks_and_services(
    clusterrun: Launcher, run_id: str, runtime: dict[str, str]
) -> None:
    job_file = """
        script: train.py
        nproc_per_node: 2
        services:
          judge: {script: judges.py}
    """
    judges = "import time\nprint('judges', flush=True)\ntime.sleep(1000)\n"
    job = start_job(
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
    of_judge = clusterrun.command("stacks", run_id, "--rank=2", environ=runtime).ended()

    assert of_judge.out.startswith("  judge rank 0:\n"), of_judge
    assert ended.code == 0
    assert re.search(r"(?m)^  ranks 0-1:\n +File \".*train\.py\", line \d in <module>$", ended.out)
    assert re.search(
        r"(?m)^  judge rank 0:\n +File \".*judges\.py\", line 3 in <module>$", ended.out
    )


def test_dry_run_shows_services(clusterrun: Launcher) -> None:
    job = start_job(clusterrun, TWO_SERVERS, "", "--dry-run", "--run-id=mine")

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


def test_dry_run_as_json_has_services(clusterrun: Launcher) -> None:
    job = start_job(clusterrun, TWO_SERVERS, "", "--dry-run", "--json", "--run-id=mine")

    ended = job.ended()

    assert (ended.code, ended.err) == (0, "")
    plan = json.loads(ended.out)
    workers = [
        (worker["rank"], worker.get("service"), worker["command"][-1]) for worker in plan["workers"]
    ]
    assert workers == [
        (0, None, "train.py"),
        (1, None, "train.py"),
        (2, "server", "server.py"),
        (3, "server", "server.py"),
    ]
    assert "RANK" not in plan["workers"][2]["env"]
    assert {worker["env"]["PORT"] for worker in plan["workers"]} == {None}
    assert set(plan["services"]) == {"server"}
    server = plan["services"]["server"]
    assert server["nproc_per_node"]["value"] == "2"
    assert re.fullmatch(r".*:\d+ services.server.ready", server["ready"]["origin"])


def test_dry_run_of_job_without_services(clusterrun: Launcher) -> None:
    """It has no line and no key about services."""
    text, as_json = (
        start_job(clusterrun, "script: train.py", "", "--dry-run", *options).ended()
        for options in ([], ["--json"])
    )

    shown = json.loads(as_json.out)
    assert text.code == 0
    assert not re.search(r"(?m)^ *(services?|main_nodes|PORT|CLUSTERRUN_MAIN_\w+)\b", text.out)
    assert set(shown) == {"job", "workers", "assumed", "remarks"}
    assert shown["job"].keys().isdisjoint({"services", "main_nodes", "node_ranks"})
    assert "service" not in shown["workers"][0]
