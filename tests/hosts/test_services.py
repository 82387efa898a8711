"""A main program and its services on several hosts: started by hand, by ssh, and by a real Slurm."""

import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from tests.contract.launched import Ended, Job, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import codes, ended
from tests.hosts.slurm import Slurm
from tests.hosts.ssh_hosts import SshHosts

SERVER = """
    import http.server, os, subprocess, sys

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(os.environ["ROLE_RANK"].encode())
            if self.path == "/die":
                self.wfile.flush()
                os._exit(9)

        def log_message(self, *_):
            pass

    # It has a session of its own, and ignores SIGTERM.
    subprocess.Popen(
        [sys.executable, "-c", "import signal, time\\nsignal.signal(15, 1)\\ntime.sleep(1000)"],
        start_new_session=True,
    )
    print("serves at", os.environ["PORT"], flush=True)
    http.server.HTTPServer(("0.0.0.0", int(os.environ["PORT"])), Answers).serve_forever()
"""

CALL_SERVER = """
    import os, sys, time, urllib.request

    def responses(path):
        urls = os.environ["CLUSTERRUN_SERVER_URLS"].split(",")
        return [urllib.request.urlopen(url + path, timeout=30).read().decode() for url in urls]

    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    print("main", *(os.environ[name] for name in names), *responses("/"), flush=True)
"""

KILL_SERVER = CALL_SERVER + '    responses("/die")\n    time.sleep(1000)\n'

KILL_SERVER_AND_RETRY = (
    CALL_SERVER
    + """
    responses("/die")
    for _ in range(300):
        try:
            print("restarted", *responses("/"), flush=True)
            sys.exit()
        except OSError:
            time.sleep(0.1)
    sys.exit("no server came back")
"""
)

CALL_SERVER_AND_WAIT = CALL_SERVER + '    print("waits", flush=True)\n    time.sleep(1000)\n'

FILE = """\
script: {folder}/train.py
{more}
services:
  server:
    command: [{python}, {folder}/server.py]
    ready: {{path: /health, timeout: 20}}
    {more_of_server}
"""


RESTARTS = "nnodes: 1\n    on_failure: restart"


def written(folder: Path, script: str, *, more: str = "", more_of_server: str = "nnodes: 1") -> str:
    """Write the two programs and the job file, with ``more`` lines; return its path."""
    (folder / "train.py").write_text(dedent(script))
    (folder / "server.py").write_text(dedent(SERVER))
    file = folder / "job.yaml"
    options = {"more": more, "more_of_server": more_of_server}
    file.write_text(FILE.format(folder=folder, python=sys.executable, **options))
    return str(file)


def started(
    clusterrun: Launcher, hosts: Sequence[Host], file: str, *options: str, other: str = ""
) -> list[Job]:
    """Start two nodes with the same job file, or node 1 with the ``other`` one."""
    options = ("--nnodes=2", f"--master-addr={hosts[0].address}", *options)
    return [
        clusterrun.command(
            "--config", path, f"--node-rank={rank}", *options, around=hosts[rank].around
        )
        for rank, path in enumerate((file, other or file))
    ]


def reported_cause(end: Ended) -> list[str]:
    """Return which worker is named as the cause, and the line with the exit code."""
    cause = re.findall(r"clusterrun: (.* rank \d+ on n\d) failed: exit code", end.err)
    return cause + re.findall(r"clusterrun: (exit code \d+, from .*)\n", end.err)


def test_server_on_last_node(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Ranks of the main program begin with 0. When it ends, the server is stopped."""
    file = written(clusterrun.folder, CALL_SERVER, more="node_ranks: 0")

    first, second = ended(started(clusterrun, hosts, file, "--nproc-per-node", "2"))

    assert codes([first, second]) == [0, 0]
    assert sorted(re.findall(r"main (.*)", first.out)) == ["0 2 2 0 1 0", "1 2 2 0 1 0"]
    assert re.search(r"\[server 0 n1\] serves at \d+", second.out)
    assert "the main program has ended: stopping 1 worker of services" in second.err


def test_ranks_and_servers_on_all_nodes(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    file = written(clusterrun.folder, CALL_SERVER, more_of_server="nproc_per_node: 2")

    ends = ended(started(clusterrun, hosts, file))

    assert codes(ends) == [0, 0]
    out = "".join(end.out for end in ends)
    assert sorted(re.findall(r"main (.*)", out)) == ["0 2 1 0 2 0 1 2 3", "1 2 1 1 2 0 1 2 3"]


def test_failed_server_ends_job_with_its_code(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    file = written(clusterrun.folder, KILL_SERVER, more="node_ranks: 0")

    ends = ended(started(clusterrun, hosts, file))

    assert codes(ends) == [9, 9]
    expected = ["server rank 0 on n1", "exit code 9, from server rank 0"]
    assert [reported_cause(end) for end in ends] == [expected, expected]


def test_server_restarts_alone_at_same_address(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    more = "node_ranks: 0\nmax_restarts: 2"
    file = written(clusterrun.folder, KILL_SERVER_AND_RETRY, more=more, more_of_server=RESTARTS)

    first, second = ended(started(clusterrun, hosts, file))

    assert codes([first, second]) == [0, 0]
    assert "restarted 0" in first.out
    assert "server rank 0 ended with exit code 9: restarting it (1 of 2)" in second.err
    ports = re.findall(r"serves at (\d+)", second.out)
    assert len(ports) == 2
    assert len(set(ports)) == 1


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGKILL, [5, -9]), (signal.SIGTERM, [143, 143]), (signal.SIGINT, [130, 130])],
)
def test_signal_to_agent_of_server_node_ends_job(
    number: signal.Signals, expected: list[int], hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    file = written(clusterrun.folder, CALL_SERVER_AND_WAIT, more="node_ranks: 0")
    jobs = started(clusterrun, hosts, file)
    jobs[0].wait_for("waits")

    jobs[1].signal(number)

    assert codes(ended(jobs)) == expected


def test_different_job_files_are_refused(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    one = written(clusterrun.folder, CALL_SERVER, more="node_ranks: 0")
    other = clusterrun.folder / "other.yaml"
    other.write_text(Path(one).read_text().replace("/health", "/ready"))

    ends = ended(started(clusterrun, hosts, one, "--rdzv-timeout=5", other=str(other)))

    assert 0 not in codes(ends)
    assert "services" in ends[1].err


def test_services_over_ssh(ssh: SshHosts, clusterrun: Launcher) -> None:
    file = written(clusterrun.folder, CALL_SERVER, more="node_ranks: 0-1")

    end = clusterrun.command(
        *ssh.options(), "--config", file, "--", "--lr", "3", around=ssh.client.around
    ).ended()

    assert end.code == 0, end.err
    assert sorted(re.findall(r"main (.*)", end.out)) == ["0 2 1 0 2 0", "1 2 1 1 2 0"]
    assert "[server 0 n2] serves at" in end.out


def test_services_in_slurm_step(slurm: Slurm, clusterrun: Launcher) -> None:
    file = written(clusterrun.folder, CALL_SERVER, more="node_ranks: 0")

    end = clusterrun.command(
        "--config", file, around=slurm.around("-N2", "--ntasks-per-node=1")
    ).ended()

    assert end.code == 0, end.err
    assert re.findall(r"main (.*)", end.out) == ["0 1 1 0 1 0"]
    assert "[server 0 n1] serves at" in end.out
