"""Ranks on other hosts, with a replacement for ssh that runs them on this machine."""

import os
import time
from pathlib import Path
from typing import Any

import clusterrun
import pytest
from clusterrun import UsageError, WorkerFailed
from free_ports import free_port

SSH = """\
#!/bin/sh
for command; do :; done
exec sh -c "$command"
"""

TIMEOUT = 20.0


@pytest.fixture
def hosts(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options for two hosts, which are both this machine."""
    del here
    folder = tmp_path / "bin"
    folder.mkdir()
    ssh = folder / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    rendezvous = {"master_addr": "127.0.0.1", "master_port": free_port()}
    return {"hosts": ["a", "b"], "nproc_per_node": 2, **rendezvous}


def rank_and_host() -> tuple[str, ...]:
    return tuple(os.environ[name] for name in ("RANK", "GROUP_RANK", "WORLD_SIZE"))


RANKS_AND_HOSTS = [("0", "0", "4"), ("1", "0", "4"), ("2", "1", "4"), ("3", "1", "4")]


def test_launch_returns_results_of_all_hosts(hosts: dict[str, Any]) -> None:
    assert clusterrun.launch(rank_and_host, **hosts) == RANKS_AND_HOSTS


def fail_on_rank_3() -> None:
    if os.environ["RANK"] == "3":
        raise ValueError("bad batch")
    time.sleep(1000)


def test_first_failed_rank_on_hosts_is_the_cause(hosts: dict[str, Any]) -> None:
    with pytest.raises(WorkerFailed, match=r"rank 3 on .* failed: ValueError: bad batch") as caught:
        clusterrun.launch(fail_on_rank_3, **hosts)

    assert (caught.value.rank, caught.value.exit_code) == (3, 1)
    assert isinstance(caught.value.__cause__, ValueError)


def test_workers_on_all_hosts_keep_state(
    hosts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with clusterrun.Workers(**hosts) as workers:
        pids = workers.run(os.getpid)
        assert workers.run(rank_and_host) == RANKS_AND_HOSTS
        workers.run(print, "hello")
        lines = capsys.readouterr().out.splitlines()
        assert sorted(line[:8] + line[-5:] for line in lines) == [
            f"[rank {rank} hello"[:8] + "hello" for rank in range(4)
        ]
        began = time.monotonic()
        with pytest.raises(WorkerFailed, match=r"\Arank 3 on \S+ failed:\nTraceback"):
            workers.run(fail_on_rank_3)
        assert time.monotonic() - began < TIMEOUT
        assert workers.run(os.getpid) == pids


def test_unreachable_host_is_rendezvous_error(hosts: dict[str, Any], tmp_path: Path) -> None:
    """Nothing was started."""
    (tmp_path / "bin" / "ssh").write_text(
        "#!/bin/sh\necho 'ssh: Could not resolve hostname b: Name or service not known' >&2\nexit 255\n"
    )

    with pytest.raises(clusterrun.RendezvousError, match="2 of 2 hosts are not ready") as caught:
        clusterrun.Workers(**hosts)

    assert "its name does not resolve" in caught.value.hint


def test_usage_error_on_host_is_raised(hosts: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--numa-binding: 'sideways' is not a NUMA binding"):
        clusterrun.launch(rank_and_host, **{**hosts, "numa_binding": "sideways"})


KILLS_AGENT = """\
#!/bin/sh
for command; do :; done
exec 3<&0
sh -c "$command" <&3 &
while ! test -e {works}; do sleep 0.05; done
# An agent that goes on would see that the other is gone.
kill -STOP $!
touch {works}-$$
while test $(ls -d {works}-* | wc -l) -lt 2; do sleep 0.05; done
kill -KILL $!
"""


def test_loss_of_all_connections_is_node_lost_error(hosts: dict[str, Any], tmp_path: Path) -> None:
    works = tmp_path / "works"
    (tmp_path / "bin" / "ssh").write_text(KILLS_AGENT.format(works=works))

    def waits() -> None:
        works.touch()
        time.sleep(1000)

    with pytest.raises(clusterrun.NodeLostError, match="all connections are lost"):
        clusterrun.launch(waits, **hosts)
