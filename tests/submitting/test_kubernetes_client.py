"""``clusterrun submit`` without kubectl: Kubernetes' official client, and an API server of the test."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.launched import COMMAND, plain_environment
from tests.submitting.api_server import ApiServer, api_server
from tests.submitting.door import (
    answer,
)

JOB = (
    "--to",
    "kubernetes",
    "--image",
    "x",
    "--gpus-per-node",
    "8",
    "--job-name",
    "train",
    "train.py",
)

FAILED = {
    "type": "Failed",
    "status": "True",
    "reason": "PodFailurePolicy",
    "message": "Container train for pod ml/train-1-x failed with exit code 9 matching",
}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """Return a server without objects."""
    with api_server() as made:
        yield made


def clusterrun(folder: Path, server: ApiServer, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command where no kubectl is on PATH."""
    config = folder / "kubeconfig"
    config.write_text(server.kubeconfig)
    environ = {"PATH": str(Path(COMMAND).parent), "KUBECONFIG": str(config)}
    return subprocess.run(
        [COMMAND, *words],
        cwd=folder,
        env={**plain_environment(), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_submitted_and_followed(folder: Path, server: ApiServer) -> None:
    """All objects are checked by the server first; then they are made, the job last."""
    server.statuses = [{"ready": 1}, {"conditions": [FAILED]}]

    done = clusterrun(folder, server, "submit", "--follow", *JOB)

    assert done.returncode == 9, done.stderr
    assert "Kubernetes has queued job job/train (train)\n" in done.stdout
    assert "[pod/train-0-x] hello from train-0-x\n" in done.stdout
    assert "[pod/train-1-x] hello from train-1-x\n" in done.stdout
    assert "job job/train has ended: Failed (PodFailurePolicy), exit code 9" in done.stderr
    made = [*(f"/api/v1/namespaces/ml/{it}" for it in ("secrets", "services"))]
    made += ["/apis/batch/v1/namespaces/ml/jobs"]
    assert server.asked[:6] == [f"POST {it}{dry}" for dry in ("?dryRun=All", "") for it in made]
    assert set(server.objects) == {f"{it}/train" for it in made}


@pytest.mark.long
def test_a_refusal_and_the_end_of_a_jobset(folder: Path, server: ApiServer) -> None:
    """A job that is there already; cancel deletes all of its objects."""
    kind = ("--kind", "jobset", "--namespace", "team")

    first = clusterrun(folder, server, "submit", "--quiet", *kind, *JOB)
    second = clusterrun(folder, server, "submit", *kind, *JOB)
    ended = clusterrun(folder, server, "cancel", "--to", "kubernetes", "team/jobset/train")
    again = clusterrun(folder, server, "cancel", "--to", "kubernetes", "team/jobset/train")

    assert (first.returncode, first.stdout) == (0, "team/jobset/train\n"), first.stderr
    refused = (
        'Kubernetes refuses the job: Error from server (AlreadyExists): secrets "train" already'
    )
    assert (second.returncode, refused in second.stderr) == (2, True), second.stderr
    assert "job_name is set by --job-name" in second.stderr
    assert (ended.returncode, server.objects) == (0, {}), ended.stderr
    assert "Kubernetes knows no job team/jobset/train" in again.stderr


@pytest.mark.long
def test_a_controller_that_is_not_installed(folder: Path, server: ApiServer) -> None:
    """The server has no TrainJobs: nothing is made."""
    done = clusterrun(folder, server, "submit", "--kind", "trainjob", *JOB)

    assert done.returncode == 2
    assert 'no matches for kind "TrainingRuntime"' in done.stderr
    assert "kind is set by --kind" in done.stderr
    assert server.objects == {}


@pytest.mark.long
def test_no_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no pod around this process."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    words = ("kubectl", "get", "job/train", "--output=json")

    answered = answer(words, {"KUBECONFIG": "/nowhere/config"})

    assert answered.code == 1
    assert answered.err.startswith("kubeconfig cannot be used: ")


@pytest.mark.long
def test_no_server(folder: Path) -> None:
    """One line, and nothing of the client's own."""
    with api_server() as server:
        pass

    done = clusterrun(folder, server, "cancel", "--to", "kubernetes", "job/train")

    assert done.returncode == 2
    assert "clusterrun: error: Kubernetes does not answer: " in done.stderr
    assert "Connection refused" in done.stderr
    assert "Traceback" not in done.stderr
