"""A job with services that succeeds: start order, variables, arguments, output and end."""

import json
import re
from typing import Any

import pytest

from tests.contract.launched import Job, Launcher
from tests.contract.services.job_files import ONE_SERVER, client, start_job, write_job

WORLD_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}


def printed_by(job: Job, name: str) -> list[dict[str, Any]]:
    """Return the JSON objects that workers have printed after a name."""
    return [json.loads(text) for text in re.findall(rf"(?m) {name} (\{{.*\}})$", job.out)]


def test_main_program_starts_when_its_server_is_ready(clusterrun: Launcher) -> None:
    """Each line names its program. The end of the server is not a failure."""
    script = client("print('answer', get('/health') == '')")
    job = start_job(clusterrun, ONE_SERVER, script, "--nproc-per-node=2")

    ended = job.ended()

    assert ended.code == 0
    first, *others = ended.out.splitlines()
    assert re.fullmatch(r"\[server 0\] listens \d+", first)
    assert sorted(others) == ["[rank 0] answer True", "[rank 1] answer True"]
    assert "the main program has ended: stopping 1 worker of services\n" in ended.err
    assert "failed" not in ended.err
    assert job.left() == []


def test_variables_of_each_program(clusterrun: Launcher) -> None:
    """A DDP script sees only the ranks of the main program. A service has no world unless it asks for one.

    It does not get that of a platform, which sets these variables on each node.
    """
    job_file = """
        script: train.py
        nproc_per_node: 2
        env: {ALL: of all, BOTH: of the job}
        services:
          server:
            command: [python, server.py]
            nproc_per_node: 2
            ready: /health
            env: {BOTH: of the service, WHERE: "at $PORT"}
          judge: {command: [python, server.py], ready: tcp, world: true}
    """
    script = client("""
        if os.environ["RANK"] == "0":
            for url in os.environ["CLUSTERRUN_SERVER_URLS"].split(","):
                print("server", get("/environment", url))
            print("judge", get("/environment", os.environ["CLUSTERRUN_JUDGE_URL"]))
        print("main", json.dumps(dict(os.environ)))
    """)
    platform = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    job = start_job(clusterrun, job_file, script, environ=platform)

    assert job.ended().code == 0
    ranks = sorted(printed_by(job, "main"), key=lambda worker: str(worker["RANK"]))
    servers, (judge,) = printed_by(job, "server"), printed_by(job, "judge")
    assert [
        [worker[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "ROLE_NAME")]
        for worker in ranks
    ] == [["0", "0", "2", "default"], ["1", "1", "2", "default"]]
    assert [
        [worker[name] for name in ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")]
        for worker in servers
    ] == [["server", "0", "2"], ["server", "1", "2"]]
    assert [WORLD_VARIABLES & worker.keys() for worker in servers] == [set(), set()]
    assert [judge[name] for name in sorted(WORLD_VARIABLES)] == ["0", "1", "0", "1"]
    assert len({worker["MASTER_PORT"] for worker in (ranks[0], servers[0], judge)}) == 3
    assert {(worker["ALL"], worker["BOTH"]) for worker in servers} == {("of all", "of the service")}
    assert {worker["BOTH"] for worker in (*ranks, judge)} == {"of the job"}
    ports = [worker["PORT"] for worker in servers]
    assert [worker["WHERE"] for worker in servers] == [f"at {port}" for port in ports]
    assert len({worker["PORT"] for worker in (*ranks, *servers, judge)}) == 5
    addresses = [f"127.0.0.1:{port}" for port in ports]
    for worker in (*ranks, *servers, judge):
        found = {name: worker[f"CLUSTERRUN_SERVER_{name}"] for name in ("ADDR", "URL", "HOSTS")}
        assert found == {
            "ADDR": addresses[0],
            "URL": f"http://{addresses[0]}",
            "HOSTS": "127.0.0.1",
        }
        assert worker["CLUSTERRUN_SERVER_ADDRS"] == ",".join(addresses)
        assert worker["CLUSTERRUN_SERVER_URLS"] == ",".join(
            f"http://{other}" for other in addresses
        )
        assert worker["CLUSTERRUN_SERVER_MASTER"] == f"127.0.0.1:{servers[0]['MASTER_PORT']}"
        assert worker["CLUSTERRUN_JUDGE_ADDR"] == f"127.0.0.1:{judge['PORT']}"
        assert worker["CLUSTERRUN_MAIN_ADDRS"] == ",".join(
            f"127.0.0.1:{other['PORT']}" for other in ranks
        )


def test_variables_of_the_job_file_may_extend_inherited_ones(clusterrun: Launcher) -> None:
    """The modules and programs in their folders are found, by ranks that are forked, too."""
    for folder in ("lib", "bin"):
        (clusterrun.folder / folder).mkdir()
    files = {"lib/only_there.py": "print('imported')", "bin/only-there": "#!/bin/sh\necho runs"}
    job_file = """
        script: train.py
        nproc_per_node: 2
        env: {PYTHONPATH: "$HERE/lib:$PYTHONPATH"}
        services:
          tool: {command: [only-there], env: {PATH: "$HERE/bin:$PATH"}, must_finish: true}
    """
    environ = {"HERE": str(clusterrun.folder), "PYTHONPATH": "/inherited"}
    script = "import only_there, sys; print('path', sys.path[2])"
    write_job(clusterrun.folder, job_file, script, files)
    (clusterrun.folder / "bin/only-there").chmod(0o755)

    ended = clusterrun.command("--config", "job.yaml", environ=environ).ended()

    assert ended.code == 0, ended
    assert "[tool 0] runs\n" in ended.out
    assert ended.out.count("imported\n") == 2
    assert ended.out.count(" path /inherited\n") == 2


def test_variables_in_arguments_are_replaced(clusterrun: Launcher) -> None:
    """``$$`` is a dollar sign; a command that is a text is run by the shell."""
    job_file = """
        script: train.py
        args: [--url, $CLUSTERRUN_SERVER_URL, "${RANK}x", $$HOME]
        nproc_per_node: 2
        services:
          server: {command: "exec python -m http.server $PORT >/dev/null 2>&1", ready: /job.yaml}
          echo:
            script: prints.py
            args: [$ROLE_NAME, $PORT, "$GIVEN"]
            env: {GIVEN: "of $ROLE_NAME"}
            nproc_per_node: 2
            must_finish: true
    """
    script = client("print(sys.argv[1:], sys.argv[2] == os.environ['CLUSTERRUN_SERVER_URL'])")
    prints = "import os, sys; print(sys.argv[1:], sys.argv[2] == os.environ['PORT'])"
    job = start_job(clusterrun, job_file, script, files={"prints.py": prints})

    ended = job.ended()

    assert ended.code == 0
    lines = sorted(re.sub(r"\d{4,}", "PORT", line) for line in ended.out.splitlines())
    assert lines == [
        "[echo 0] ['echo', 'PORT', 'of echo'] True",
        "[echo 1] ['echo', 'PORT', 'of echo'] True",
        "[rank 0] ['--url', 'http://127.0.0.1:PORT', '0x', '$HOME'] True",
        "[rank 1] ['--url', 'http://127.0.0.1:PORT', '1x', '$HOME'] True",
    ]


def test_services_start_in_the_order_of_after(clusterrun: Launcher) -> None:
    """The main program starts last."""
    job_file = """
        script: train.py
        services:
          judge: {command: [python, server.py], ready: tcp, after: [server]}
          server: {command: "sleep 0.5; exec python server.py", ready: /health}
    """
    job = start_job(clusterrun, job_file)

    assert job.ended().code == 0
    assert re.findall(r"(?m)^\[(.*)\] \w+", job.out) == ["server 0", "judge 0", "rank 0"]


def test_service_without_ready_is_not_waited_for(clusterrun: Launcher) -> None:
    job_file = """
        script: train.py
        services:
          server: {command: "echo loads; sleep 1000"}
    """
    job = start_job(clusterrun, job_file)

    assert job.ended().code == 0
    assert "[rank 0] trained\n" in job.out
    assert job.left() == []


def test_script_is_forked_in_a_job_with_services(clusterrun: Launcher) -> None:
    job = start_job(clusterrun, ONE_SERVER, "import json", "-v", "--nproc-per-node=2")

    ended = job.ended()

    assert ended.code == 0
    assert "clusterrun: workers are forked; " in ended.err


def test_script_and_module_as_services(clusterrun: Launcher) -> None:
    job_file = """
        script: train.py
        services:
          server: {script: server.py, args: [prints], ready: /health}
          files: {module: http.server, args: [$PORT], ready: /train.py}
    """
    script = client("print('size', len(get('/train.py', os.environ['CLUSTERRUN_FILES_URL'])) > 9)")
    job = start_job(clusterrun, job_file, script)

    assert job.ended().code == 0
    assert "[rank 0] size True\n" in job.out
    assert "[server 0] tokens/s: 1\n" in job.out


@pytest.mark.parametrize(
    ("command", "options", "error"),
    [
        ("[no-such-command]", [], "services.server: there is no program no-such-command\n"),
        (
            "[python, server.py, $MODEL]",
            [],
            "$MODEL is not set\n  set it, or write $$MODEL for the",
        ),
        (
            "[python, server.py]",
            ["--role=server"],
            "server is the role of the main program (--role)",
        ),
        ("[python, server.py]", ["--nnodes=2", "--master-addr=127.0.0.1"], "give --node-rank\n"),
    ],
)
def test_usage_error(clusterrun: Launcher, command: str, options: list[str], error: str) -> None:
    """Nothing starts."""
    job_file = f"script: train.py\nservices:\n  server: {{command: {command}}}"
    ended = start_job(clusterrun, job_file, "print('trained')", *options).ended()

    assert (ended.code, ended.out) == (2, "")
    assert "job.yaml:3 services.server" in ended.err
    assert error in ended.err
