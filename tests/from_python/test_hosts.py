"""Ranks on other hosts, which ssh reaches; here a program in its place runs all on this machine."""

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

PATIENCE = 20.0


@pytest.fixture
def hosts(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options of two hosts, both of which are this machine."""
    del here
    folder = tmp_path / "bin"
    folder.mkdir()
    ssh = folder / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    place = {"master_addr": "127.0.0.1", "master_port": free_port()}
    return {"hosts": ["a", "b"], "nproc_per_node": 2, **place}


def place() -> tuple[str, ...]:
    return tuple(os.environ[name] for name in ("RANK", "GROUP_RANK", "WORLD_SIZE"))


PLACES = [("0", "0", "4"), ("1", "0", "4"), ("2", "1", "4"), ("3", "1", "4")]


def test_a_call_returns_the_results_of_all_hosts(hosts: dict[str, Any]) -> None:
    assert clusterrun.launch(place, **hosts) == PLACES


def fails_on_rank_3() -> None:
    if os.environ["RANK"] == "3":
        raise ValueError("bad batch")
    time.sleep(1000)


def test_the_first_rank_that_fails_is_the_cause(hosts: dict[str, Any]) -> None:
    with pytest.raises(WorkerFailed, match=r"rank 3 on .* failed: ValueError: bad batch") as caught:
        clusterrun.launch(fails_on_rank_3, **hosts)

    assert (caught.value.rank, caught.value.exit_code) == (3, 1)
    assert isinstance(caught.value.__cause__, ValueError)


def test_ranks_of_all_hosts_live_on(
    hosts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with clusterrun.Workers(**hosts) as workers:
        pids = workers.run(os.getpid)
        assert workers.run(place) == PLACES
        workers.run(print, "hello")
        lines = capsys.readouterr().out.splitlines()
        assert sorted(line[:8] + line[-5:] for line in lines) == [
            f"[rank {rank} hello"[:8] + "hello" for rank in range(4)
        ]
        began = time.monotonic()
        with pytest.raises(WorkerFailed, match=r"\Arank 3 on \S+ failed:\nTraceback"):
            workers.run(fails_on_rank_3)
        assert time.monotonic() - began < PATIENCE
        assert workers.run(os.getpid) == pids


def test_a_host_that_is_not_reached(hosts: dict[str, Any], tmp_path: Path) -> None:
    """Its fault is the error; nothing was started."""
    (tmp_path / "bin" / "ssh").write_text(
        "#!/bin/sh\necho 'ssh: Could not resolve hostname b: Name or service not known' >&2\nexit 255\n"
    )

    with pytest.raises(clusterrun.RendezvousError, match="2 of 2 hosts are not ready") as caught:
        clusterrun.Workers(**hosts)

    assert "its name does not resolve" in caught.value.hint


def test_a_mistake(hosts: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--numa-binding: 'sideways' is not a NUMA binding"):
        clusterrun.launch(place, **{**hosts, "numa_binding": "sideways"})
