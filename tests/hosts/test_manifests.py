"""The manifests of configs/kubernetes, with simulated controllers."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from tests.contract.launched import COMMAND
from tests.hosts.failing_ranks import PRINT_OR_FAIL, RANKS, two_by_two
from tests.hosts.host import Host
from tests.hosts.kubernetes import EVICTED_AFTER, Result, read_manifest, run

ROOT = Path(__file__).parents[2]
PATH = f"{Path(COMMAND).parent}:{os.defpath}"
KINDS = ("jobset", "trainjob")

pytestmark = pytest.mark.timeout(300)

RESUME = """
    import os, time
    from pathlib import Path
    from clusterrun import suspend

    saved = Path("saved")
    print(f"begins at {saved.read_text() if saved.exists() else 0}", flush=True)
    for step in range(3 if saved.exists() else 10_000):
        time.sleep(0.01)
        if step == 3:
            Path(f"has-begun-{os.environ['RANK']}").touch()
        if suspend.requested(step):
            saved.write_text(str(step))
            suspend.ready()
"""

HOOK = "sh -c 'until test -e has-begun-0 -a -e has-begun-1; do sleep 0.1; done; test ! -e saved'"
"""Requests a suspension in the first run, once all ranks have started."""


def edited(kind: str, *words: str) -> str:
    """Return the manifest with another command, and its options for rendezvous."""
    *objects, last = yaml.safe_load_all((ROOT / f"configs/kubernetes/{kind}.yaml").read_text())
    runtime = last if kind == "jobset" else objects[-1]["spec"]["template"]
    (replicated,) = runtime["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    rendezvous = [
        each for each in container["command"] if each.startswith(("--nnodes", "--master"))
    ]
    container["command"] = ["clusterrun", *rendezvous, *words]
    return yaml.safe_dump_all([*objects, last])


def ranks(result: Result) -> list[str]:
    text = "".join(end.out for end in result.rounds[-1])
    return sorted(re.findall(RANKS, text))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the working directory of the image."""
    (tmp_path / "ranks.py").write_text(dedent(PRINT_OR_FAIL))
    return tmp_path


@pytest.mark.parametrize("kind", ["jobset", pytest.param("trainjob", marks=pytest.mark.long)])
def test_manifest_trains_to_95_percent(kind: str, hosts: Sequence[Host]) -> None:
    manifest = (ROOT / f"configs/kubernetes/{kind}.yaml").read_text()

    result = run(read_manifest(manifest), hosts, ROOT, PATH)

    ends = [(end.code, end.err) for end in result.rounds[0]]
    assert result.condition == "Complete", ends
    out = "".join(end.out for end in result.rounds[0])
    assert float(re.findall(r"test accuracy ([0-9.]+) %", out)[0]) >= 95


@pytest.mark.parametrize("kind", KINDS)
def test_failing_rank_fails_job_without_retry(
    kind: str, hosts: Sequence[Host], folder: Path
) -> None:
    """The pods exit with the rank's exit code."""
    manifest = edited(kind, "--nproc-per-node=2", "--env=FAILS=3", "ranks.py")

    result = run(read_manifest(manifest), hosts, folder, PATH)

    assert result.condition == "Failed PodFailurePolicy"
    assert [end.code for end in result.rounds[0]] == [9, 9], result.rounds[0]
    assert ranks(result) == two_by_two("digits-node-0-")


def test_suspended_job_resumes_in_new_pods(hosts: Sequence[Host], folder: Path) -> None:
    """Its pods do not count as failures."""
    (folder / "resumes.py").write_text(dedent(RESUME))
    options = ("--nproc-per-node=1", "--requeue", "--suspend-hook", HOOK)
    manifest = edited("jobset", *options, "resumes.py")

    result = run(read_manifest(manifest), hosts, folder, PATH)

    assert result.condition == "Complete", result
    assert [[end.code for end in ends] for ends in result.rounds] == [[75, 75], [0, 0]]
    begun = [re.findall(r"begins at (\d+)", end.out)[0] for end in result.rounds[1]]
    assert begun[0] == begun[1] != "0"


WAIT_FOR_EVICTION = f"""
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


def test_evicted_pod_does_not_count_as_failure(hosts: Sequence[Host], folder: Path) -> None:
    """Its SIGTERM ends the job on both pods. Both are created again, and the other one counts once."""
    (folder / "evicted.py").write_text(dedent(WAIT_FOR_EVICTION))
    job = read_manifest(edited("jobset", "--nproc-per-node=1", "evicted.py"))

    result = run(job, hosts, folder, PATH, evicted=1)

    assert result.condition == "Complete", result
    assert [[end.code for end in ends] for ends in result.rounds] == [[143, 143], [0, 0]]
    assert (result.failures, job.backoff_limit) == (1, 4)


def test_pod_with_wrong_token_is_refused(hosts: Sequence[Host], folder: Path) -> None:
    """The Secret of the manifest has the token."""
    options = ("--nproc-per-node=1", "--rdzv-timeout=3")
    job = read_manifest(edited("jobset", *options, "ranks.py"))
    unauthenticated = replace(
        job.pods[1], environ={**job.pods[1].environ, "CLUSTERRUN_TOKEN": 64 * "x"}
    )

    result = run(replace(job, pods=(job.pods[0], unauthenticated)), hosts, folder, PATH)

    assert result.condition == "Failed PodFailurePolicy"
    assert result.rounds[0][1].code == 4, result.rounds[0]
    assert ranks(result) == []
