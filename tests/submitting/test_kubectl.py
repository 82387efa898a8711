"""The command line with a kubectl that stands in for a cluster: what it is asked, in which order."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.contract.launched import COMMAND, plain_environment

# Its answers to `get` are the files status.1, status.2 and so on, the last one for ever.
KUBECTL = """\
#!/bin/sh
cd "$FOLDER" || exit 1
echo "$*" >> asked
case $* in
"create --dry-run=server -f -") cat > checked; [ ! -e refusal ] || { cat refusal >&2; exit 1; } ;;
"create -f -") cat > created; echo "secret/train created"; echo "job.batch/train created" ;;
get*)
    number=$(($(cat number 2>/dev/null || echo 0) + 1))
    [ ! -e "status.$number" ] || echo "$number" > number
    cat "status.$(cat number)" ;;
logs*) echo "[pod/train-0-x/train] hello" ;;
delete*) echo 'job.batch "train" deleted' ;;
*) exit 64 ;;
esac
"""

FAILED = {
    "type": "Failed",
    "status": "True",
    "reason": "PodFailurePolicy",
    "message": "Container train for pod default/train-1-x failed with exit code 9 matching",
}


@pytest.fixture
def cluster(folder: Path) -> Path:
    """Return the folder of a cluster whose job runs, then fails."""
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    spec = {"parallelism": 2}
    states = ({"ready": 1}, {"ready": 2}, {"conditions": [FAILED]})
    for number, status in enumerate(states, 1):
        (folder / f"status.{number}").write_text(json.dumps({"spec": spec, "status": status}))
    return folder


def clusterrun(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    path = f"{folder}:{os.defpath}"
    return subprocess.run(
        [COMMAND, *words],
        cwd=folder,
        env={**plain_environment(), "PATH": path, "FOLDER": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


JOB = ("submit", "--to", "kubernetes", "--image", "x", "--gpus-per-node", "8", "train.py")


def test_submitted_and_waited_for(cluster: Path) -> None:
    """The server checks what is then made; the exit code is that of the pod that failed the job."""
    # With two states, the job is asked for twice, and there is one pause.
    (cluster / "status.3").rename(cluster / "status.2")
    done = clusterrun(cluster, *JOB[:1], "--follow", *JOB[1:])

    assert (done.returncode, done.stdout) == (9, "")
    assert "clusterrun: Kubernetes has queued job job/train (train)\n" in done.stderr
    assert "job job/train has ended: Failed (PodFailurePolicy), exit code 9" in done.stderr
    asked = (cluster / "asked").read_text().splitlines()
    assert asked[:2] == ["create --dry-run=server -f -", "create -f -"]
    assert set(asked[2:]) == {"get job/train --output=json"}
    created = (cluster / "created").read_text()
    assert created == (cluster / "checked").read_text()
    assert [each["kind"] for each in yaml.safe_load_all(created)] == ["Secret", "Service", "Job"]


def test_a_refused_job_makes_nothing(cluster: Path) -> None:
    """Its Secret included."""
    (cluster / "refusal").write_text('error: jobs.batch "train" already exists\n')

    done = clusterrun(cluster, *JOB[:1], "--job-name", "train", *JOB[1:])

    assert (done.returncode, done.stdout) == (2, "")
    assert 'Kubernetes refuses the job: error: jobs.batch "train" already exists' in done.stderr
    assert "job_name is set by --job-name" in done.stderr
    assert not (cluster / "created").exists()


def test_logs_and_cancel(cluster: Path) -> None:
    """Of the job's id, as submit prints it."""
    seen = clusterrun(cluster, "logs", "--to", "kubernetes", "job/train")
    (cluster / "number").unlink()
    ended = clusterrun(cluster, "cancel", "--to", "kubernetes", "job/train")

    assert seen.returncode == 9, seen.stderr
    # Once all pods have started, and once only.
    assert seen.stdout == "[pod/train-0-x/train] hello\n"
    assert "job job/train: 2 pods ready\n" in seen.stderr
    assert (ended.returncode, ended.stdout) == (0, "Kubernetes ends job job/train\n")
    assert (cluster / "asked").read_text().splitlines()[-1] == (
        "delete job,service,secret --selector=clusterrun/job=train"
    )
