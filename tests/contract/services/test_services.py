"""A job with services that ends as it should: order, variables, arguments, output, and a clean end."""

import json
import re
from typing import Any

from tests.contract.launched import Job, Launcher
from tests.contract.services.job_files import ONE_SERVER, asking, started

WORLD_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}


def printed_by(job: Job, name: str) -> list[dict[str, Any]]:
    """Return the objects that workers have printed as JSON behind a word."""
    return [json.loads(text) for text in re.findall(rf"(?m) {name} (\{{.*\}})$", job.out)]


def test_the_main_program_starts_when_its_server_is_ready(clusterrun: Launcher) -> None:
    """Each line has its program; the server is stopped at the end, and that is no failure."""
    script = asking("print('answer', ask('/health') == '')")
    job = started(clusterrun, ONE_SERVER, script, "--nproc-per-node=2")

    ended = job.ended()

    assert ended.code == 0
    first, *others = ended.out.splitlines()
    assert re.fullmatch(r"\[server 0\] listens \d+", first)
    assert sorted(others) == ["[rank 0] answer True", "[rank 1] answer True"]
    assert "the main program has ended: stopping 1 worker of services\n" in ended.err
    assert "failed" not in ended.err
    assert job.left() == []


def test_what_each_program_gets(clusterrun: Launcher) -> None:
    """An unmodified DDP script counts its own ranks only; a server has no world."""
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
    script = asking("""
        if os.environ["RANK"] == "0":
            for url in os.environ["CLUSTERRUN_SERVER_URLS"].split(","):
                print("server", ask("/environment", url))
            print("judge", ask("/environment", os.environ["CLUSTERRUN_JUDGE_URL"]))
        print("main", json.dumps(dict(os.environ)))
    """)
    job = started(clusterrun, job_file, script)

    assert job.ended().code == 0
    ranks = sorted(printed_by(job, "main"), key=lambda each: str(each["RANK"]))
    servers, (judge,) = printed_by(job, "server"), printed_by(job, "judge")
    assert [
        [each[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "ROLE_NAME")] for each in ranks
    ] == [["0", "0", "2", "default"], ["1", "1", "2", "default"]]
    assert [
        [each[name] for name in ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")] for each in servers
    ] == [["server", "0", "2"], ["server", "1", "2"]]
    assert [WORLD_VARIABLES & each.keys() for each in servers] == [set(), set()]
    assert [judge[name] for name in sorted(WORLD_VARIABLES)] == ["0", "1", "0", "1"]
    assert len({each["MASTER_PORT"] for each in (ranks[0], servers[0], judge)}) == 3
    assert {(each["ALL"], each["BOTH"]) for each in servers} == {("of all", "of the service")}
    assert {each["BOTH"] for each in (*ranks, judge)} == {"of the job"}
    ports = [each["PORT"] for each in servers]
    assert [each["WHERE"] for each in servers] == [f"at {port}" for port in ports]
    assert len({each["PORT"] for each in (*ranks, *servers, judge)}) == 5
    addresses = [f"127.0.0.1:{port}" for port in ports]
    for each in (*ranks, *servers, judge):
        found = {name: each[f"CLUSTERRUN_SERVER_{name}"] for name in ("ADDR", "URL", "HOSTS")}
        assert found == {
            "ADDR": addresses[0],
            "URL": f"http://{addresses[0]}",
            "HOSTS": "127.0.0.1",
        }
        assert each["CLUSTERRUN_SERVER_ADDRS"] == ",".join(addresses)
        assert each["CLUSTERRUN_SERVER_URLS"] == ",".join(f"http://{it}" for it in addresses)
        assert each["CLUSTERRUN_SERVER_MASTER"] == f"127.0.0.1:{servers[0]['MASTER_PORT']}"
        assert each["CLUSTERRUN_JUDGE_ADDR"] == f"127.0.0.1:{judge['PORT']}"
        assert each["CLUSTERRUN_MAIN_ADDRS"] == ",".join(f"127.0.0.1:{it['PORT']}" for it in ranks)


def test_variables_in_arguments(clusterrun: Launcher) -> None:
    """Each worker gets its own; ``$$`` is a dollar, and a text is the shell's."""
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
    script = asking("print(sys.argv[1:], sys.argv[2] == os.environ['CLUSTERRUN_SERVER_URL'])")
    prints = "import os, sys; print(sys.argv[1:], sys.argv[2] == os.environ['PORT'])"
    job = started(clusterrun, job_file, script, files={"prints.py": prints})

    ended = job.ended()

    assert ended.code == 0
    lines = sorted(re.sub(r"\d{4,}", "PORT", line) for line in ended.out.splitlines())
    assert lines == [
        "[echo 0] ['echo', 'PORT', 'of echo'] True",
        "[echo 1] ['echo', 'PORT', 'of echo'] True",
        "[rank 0] ['--url', 'http://127.0.0.1:PORT', '0x', '$HOME'] True",
        "[rank 1] ['--url', 'http://127.0.0.1:PORT', '1x', '$HOME'] True",
    ]


def test_a_variable_that_is_not_set(clusterrun: Launcher) -> None:
    """Nothing starts; the line of the job file is named."""
    job_file = """
        script: train.py
        services:
          server: {command: [python, server.py, $MODEL]}
    """
    ended = started(clusterrun, job_file).ended()

    assert (ended.code, ended.out) == (2, "")
    assert "job.yaml:4 services.server" in ended.err
    assert "$MODEL is not set\n  set it, or write $$MODEL for the text\n" in ended.err


def test_services_in_their_order(clusterrun: Launcher) -> None:
    """``after`` among services; the main program comes last."""
    job_file = """
        script: train.py
        services:
          judge: {command: [python, server.py], ready: tcp, after: [server]}
          server: {command: "sleep 0.5; exec python server.py", ready: /health}
    """
    job = started(clusterrun, job_file)

    assert job.ended().code == 0
    assert re.findall(r"(?m)^\[(.*)\] \w+", job.out) == ["server 0", "judge 0", "rank 0"]


def test_a_server_without_ready_is_not_waited_for(clusterrun: Launcher) -> None:
    """It is stopped with the others, whatever it does by then."""
    job_file = """
        script: train.py
        services:
          server: {command: "echo loads; sleep 1000"}
    """
    job = started(clusterrun, job_file)

    assert job.ended().code == 0
    assert "[rank 0] trained\n" in job.out
    assert job.left() == []


def test_the_script_is_forked_beside_services(clusterrun: Launcher) -> None:
    """Its start is as fast as without them."""
    job = started(clusterrun, ONE_SERVER, "import json", "-v", "--nproc-per-node=2")

    ended = job.ended()

    assert ended.code == 0
    assert "clusterrun: workers are forked; " in ended.err


def test_a_script_and_a_module_as_services(clusterrun: Launcher) -> None:
    """They run in the job's Python."""
    job_file = """
        script: train.py
        services:
          server: {script: server.py, args: [prints], ready: /health}
          files: {module: http.server, args: [$PORT], ready: /train.py}
    """
    script = asking("print('size', len(ask('/train.py', os.environ['CLUSTERRUN_FILES_URL'])) > 9)")
    job = started(clusterrun, job_file, script)

    assert job.ended().code == 0
    assert "[rank 0] size True\n" in job.out
    assert "[server 0] tokens/s: 1\n" in job.out
