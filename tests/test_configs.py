"""Files in configs that are ready to edit: valid by the schemas of Kubernetes, and as scripts."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.submitting.shellcheck import shellcheck_warnings

CONFIGS = Path(__file__).parents[1] / "configs"
SCRIPTS = sorted(CONFIGS.glob("schedulers/*.sh"))
VERSIONS = ("1.29", "1.36")

Object = Mapping[str, Any]


def objects(name: str) -> list[Object]:
    return list(yaml.safe_load_all((CONFIGS / f"kubernetes/{name}.yaml").read_text()))


def jobs(each: Object) -> list[Object]:
    """Return the Jobs in an object, each as one of its own."""
    spec = each["spec"]["template"]["spec"] if each["kind"] == "TrainingRuntime" else each["spec"]
    plain = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    return [{**plain, "spec": job["template"]["spec"]} for job in spec["replicatedJobs"]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["jobset", "trainjob"])
def test_a_manifest_is_valid(name: str, version: str) -> None:
    """Strictly: a field that Kubernetes does not have is an error.

    What the typed API of Kubeflow's Trainer and of JobSet does not know would not come back.
    """
    # Here, as each process that collects this file would wait for it.
    from kubeflow_trainer_api import models

    kinds = {
        "JobSet": models.JobsetV1alpha2JobSetSpec,
        "TrainingRuntime": models.TrainerV1alpha1TrainingRuntimeSpec,
        "TrainJob": models.TrainerV1alpha1TrainJobSpec,
    }
    secret, *others = objects(name)
    plain = [secret, *(job for each in others if each["kind"] != "TrainJob" for job in jobs(each))]

    assert len(plain) == 2
    for each in plain:
        kubernetes_validate.validate(each, version, strict=True)
    for each in others:
        read = kinds[each["kind"]].from_dict(each["spec"])
        assert read is not None
        assert read.to_dict() == each["spec"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_can_be_read(script: Path) -> None:
    """By bash, and shellcheck has nothing to say."""
    subprocess.run(["bash", "-n", script], check=True, timeout=60)

    assert shellcheck_warnings(script.read_text()) == ""


def test_each_scheduler_has_a_script() -> None:
    assert [path.stem for path in SCRIPTS] == ["flux", "lsf", "pbs"]
