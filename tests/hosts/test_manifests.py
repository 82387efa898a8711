"""The manifests of ``clusterrun submit``, run as Kubernetes' controllers run them."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from tests.contract.launched import COMMAND
from tests.hosts.host import Host
from tests.hosts.kubernetes import EVICTED_AFTER, Result, read_manifest, run

ROOT = Path(__file__).parents[2]
PATH = f"{Path(COMMAND).parent}:{os.defpath}"
KINDS = ("job", "jobset", "trainjob", "pytorchjob")

pytestmark = pytest.mark.timeout(300)

RANKS = """
    import os, time
    from pathlib import Path

    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    print(f"rank {rank} of {size} in {os.uname().nodename}\\n", end="", flush=True)
    Path(f"rank-{rank}-has-printed").touch()
    assert "CLUSTERRUN_TOKEN" not in os.environ
    if rank == os.environ.get("FAILS"):
        # Its failure ends the others, which may not have printed yet.
        while len(list(Path().glob("rank-*-has-printed"))) < int(size):
            time.sleep(0.01)
        raise SystemExit(9)
"""


RESUMES = """
    import time
    from pathlib import Path
    from clusterrun import suspend

    saved = Path("saved")
    print(f"begins at {saved.read_text() if saved.exists() else 0}", flush=True)
    for step in range(3 if saved.exists() else 10_000):
        time.sleep(0.01)
        if suspend.requested(step):
            saved.write_text(str(step))
            suspend.ready()
"""

HOOK = "sh -c 'sleep 0.2; test ! -e saved'"
"""Asks for a suspension in the first round."""


def submitted(host: Host, folder: Path, *words: str) -> str:
    """Return what ``clusterrun submit --to kubernetes --print WORDS`` prints."""
    options = ("--to", "kubernetes", "--print", "--image", "here", "--gpus-per-node", "0")
    done = host.run(COMMAND, "submit", *options, *words, folder=folder)
    assert done.code == 0, done.err
    return done.out


def ranks(result: Result) -> list[str]:
    text = "".join(end.out for end in result.rounds[-1])
    return sorted(re.findall(r"rank \d of \d in \S+", text))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the working directory of the image."""
    (tmp_path / "ranks.py").write_text(dedent(RANKS))
    return tmp_path


@pytest.mark.parametrize(
    "kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[1:])]
)
def test_the_digits_are_learnt(kind: str, hosts: Sequence[Host]) -> None:
    """By the manifest in configs, which is what submit writes; the file is run as it is."""
    manifest = (ROOT / f"configs/kubernetes/{kind}.yaml").read_text()

    result = run(read_manifest(manifest), hosts, ROOT, PATH)

    ends = [(end.code, end.err) for end in result.rounds[0]]
    assert result.condition == "Complete", ends
    out = "".join(end.out for end in result.rounds[0])
    assert float(re.findall(r"test accuracy ([0-9.]+) %", out)[0]) >= 95


@pytest.mark.parametrize(
    ("kind", "pods"),
    [
        ("job", ["ranks-0", "ranks-1"]),
        ("jobset", ["ranks-node-0-0", "ranks-node-0-1"]),
        ("trainjob", ["ranks-node-0-0", "ranks-node-0-1"]),
        ("pytorchjob", ["ranks-master-0", "ranks-worker-0"]),
    ],
)
def test_a_failing_pod_fails_the_job(
    kind: str, pods: list[str], hosts: Sequence[Host], folder: Path
) -> None:
    """At once, with the rank's exit code: it is no reason to make pods again."""
    options = ("--kind", kind, "--nnodes", "2", "--nproc-per-node", "2", "--env", "FAILS=3")
    manifest = submitted(hosts[0], folder, *options, "ranks.py")

    result = run(read_manifest(manifest), hosts, folder, PATH)

    assert result.condition == "Failed PodFailurePolicy"
    assert [end.code for end in result.rounds[0]] == [9, 9], result.rounds[0]
    where = [f"rank {rank} of 4 in {pods[rank // 2]}" for rank in range(4)]
    assert ranks(result) == where


@pytest.mark.parametrize("kind", ["job", pytest.param("pytorchjob", marks=pytest.mark.long)])
def test_a_suspended_job_starts_again(kind: str, hosts: Sequence[Host], folder: Path) -> None:
    """Its pods are made anew and go on; they count as no failures."""
    (folder / "resumes.py").write_text(dedent(RESUMES))
    options = ("--kind", kind, "--nnodes", "2", "--requeue", "--suspend-hook", HOOK)
    manifest = submitted(hosts[0], folder, *options, "resumes.py")
    code = 138 if kind == "pytorchjob" else 75

    result = run(read_manifest(manifest), hosts, folder, PATH)

    assert result.condition == "Complete", result
    assert [[end.code for end in ends] for ends in result.rounds] == [[code, code], [0, 0]]
    begun = [re.findall(r"begins at (\d+)", end.out)[0] for end in result.rounds[1]]
    assert begun[0] == begun[1] != "0"


EVICTED = f"""
    import os, time
    from pathlib import Path

    rank = os.environ["RANK"]
    if Path(f"begun-{{rank}}").exists():
        raise SystemExit
    Path(f"begun-{{rank}}").touch()
    while not (Path("begun-0").exists() and Path("begun-1").exists()):
        time.sleep(0.01)
    if rank == "1":
        print("{EVICTED_AFTER}", flush=True)
    time.sleep(600)
"""


def test_an_evicted_pod_does_not_count(hosts: Sequence[Host], folder: Path) -> None:
    """Its SIGTERM ends the job on both pods; both are made again, and the other one counts once."""
    (folder / "evicted.py").write_text(dedent(EVICTED))
    manifest = submitted(hosts[0], folder, "--nnodes", "2", "evicted.py")
    job = read_manifest(manifest)

    result = run(job, hosts, folder, PATH, evicted=1)

    assert result.condition == "Complete", result
    assert [[end.code for end in ends] for ends in result.rounds] == [[143, 143], [0, 0]]
    assert (result.failures, job.backoff_limit) == (1, 4)


def test_pods_without_the_token_do_not_join(hosts: Sequence[Host], folder: Path) -> None:
    """The Secret that the manifest makes is what lets them in."""
    manifest = submitted(hosts[0], folder, "--nnodes", "2", "--rdzv-timeout", "3", "ranks.py")
    job = read_manifest(manifest)
    stranger = replace(job.pods[1], environ={**job.pods[1].environ, "CLUSTERRUN_TOKEN": 64 * "x"})

    result = run(replace(job, pods=(job.pods[0], stranger)), hosts, folder, PATH)

    assert result.condition == "Failed PodFailurePolicy"
    assert result.rounds[0][1].code == 4, result.rounds[0]
    assert ranks(result) == []
