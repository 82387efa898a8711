"""Manifests for Kubernetes: valid by the schemas of two versions, and with what was asked for."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models import (
    JobsetV1alpha2JobSetSpec,
    TrainerV1alpha1TrainingRuntimeSpec,
    TrainerV1alpha1TrainJobSpec,
)

from tests.submitting.door import (
    BY_NAME,
    Answer,
    JobPhase,
    JobState,
    NoSchedulerAnswer,
    UsageError,
    cancel,
    read_status,
)
from tests.submitting.submitted import script, submission

VERSIONS = ("1.29", "1.36")
KINDS = ("job", "jobset", "trainjob", "pytorchjob")

KUBERNETES = BY_NAME["kubernetes"]

IMAGE_ALONE = ("--to", "kubernetes", "--image", "reg/train:1")
IMAGE = (*IMAGE_ALONE, "--gpus-per-node", "8")
POD = (
    "{nodeSelector: {pool: h100, zone: a}, hostNetwork: true}",
    """
    tolerations:
    - {key: amd.com/gpu, operator: Exists, effect: NoSchedule}
    - {key: spot, value: 'yes'}
    """,
    """
    volumes:
    - {name: wandb, secret: {secretName: wandb}}
    - {name: data, persistentVolumeClaim: {claimName: data}}
    containers:
    - volumeMounts:
      - {name: wandb, mountPath: /secrets/wandb}
      - {name: data, mountPath: /data}
    """,
)
EVERYTHING = (
    *("--nnodes", "2", "--time", "2h", "--memory-per-gpu", "64G", "--cpus-per-gpu", "8"),
    *("--requeue", "--queue", "team", "--namespace", "ml", "--gpus-per-node", "amd.com/gpu:8"),
    *(f"--directive={part}" for part in POD),
)

KEYS_OF_PYTORCHJOB = {
    "spec": {"elasticPolicy", "nprocPerNode", "pytorchReplicaSpecs", "runPolicy"},
    "runPolicy": {
        *("activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "managedBy"),
        *("schedulingPolicy", "suspend", "ttlSecondsAfterFinished"),
    },
    "replica": {"replicas", "restartPolicy", "template"},
}
"""kubeflow.org/v1: kubeflow.org_pytorchjobs.yaml of the Training Operator 1.9, and the models of the
package kubeflow-training 1.9.4."""


def objects(*words: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(script(*IMAGE, *words)))


def pod(kind: str, *words: str) -> dict[str, Any]:
    """Return the ``spec`` of the pods of a job."""
    return pod_of(objects("--kind", kind, *words, "train.py"), kind)


def pod_of(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the ``spec`` of the pods in these objects."""
    last = found[-1]
    match kind:
        case "job":
            template = last["spec"]["template"]
        case "jobset":
            template = last["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        case "trainjob":
            runtime = found[-2]["spec"]["template"]["spec"]
            template = runtime["replicatedJobs"][0]["template"]["spec"]["template"]
        case _:
            template = last["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    spec: dict[str, Any] = template["spec"]
    return spec


def as_jobs(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the Jobs in other objects, each as a Job of its own."""
    plain = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    sets = [each["spec"] for each in found if each["kind"] == "JobSet"]
    sets += [
        each["spec"]["template"]["spec"] for each in found if each["kind"] == "TrainingRuntime"
    ]
    inner = [job["template"]["spec"] for spec in sets for job in spec["replicatedJobs"]]
    for each in found:
        if each["kind"] == "PyTorchJob":
            for replica in each["spec"]["pytorchReplicaSpecs"].values():
                # The operator sets the policy of the pods by that of the replicas.
                spec = {"restartPolicy": "Never", **replica["template"]["spec"]}
                inner.append({"template": {**replica["template"], "spec": spec}})
    return [{**plain, "spec": spec} for spec in inner]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [(), EVERYTHING], ids=["plain", "everything"])
def test_the_objects_are_valid(version: str, kind: str, options: tuple[str, ...]) -> None:
    """By Kubernetes' own schemas, strictly: a field that it does not have is an error."""
    found = objects("--kind", kind, *options, "train.py")
    own = [each for each in found if each["apiVersion"] in {"v1", "batch/v1"}]
    jobs = as_jobs(found)

    for each in (*own, *jobs):
        kubernetes_validate.validate(each, version, strict=True)
    assert len(own) + len(jobs) >= 2


@pytest.mark.parametrize("options", [(), EVERYTHING], ids=["plain", "everything"])
def test_the_objects_of_controllers_are_valid(options: tuple[str, ...]) -> None:
    """By the typed API of Kubeflow's Trainer: what it does not know would not come back."""
    *_, jobset = objects("--kind", "jobset", *options, "train.py")
    *_, runtime, trainjob = objects("--kind", "trainjob", *options, "train.py")

    for spec, model in (
        (jobset["spec"], JobsetV1alpha2JobSetSpec),
        (runtime["spec"], TrainerV1alpha1TrainingRuntimeSpec),
        (trainjob["spec"], TrainerV1alpha1TrainJobSpec),
    ):
        read = model.from_dict(spec)
        assert read is not None
        assert read.to_dict() == spec


@pytest.mark.parametrize("options", [(), EVERYTHING], ids=["plain", "everything"])
def test_a_pytorchjob_has_known_fields(options: tuple[str, ...]) -> None:
    """Those of the last version of its definition."""
    spec = objects("--kind", "pytorchjob", *options, "train.py")[-1]["spec"]

    assert spec.keys() <= KEYS_OF_PYTORCHJOB["spec"]
    assert spec["runPolicy"].keys() <= KEYS_OF_PYTORCHJOB["runPolicy"]
    for replica in spec["pytorchReplicaSpecs"].values():
        assert replica.keys() <= KEYS_OF_PYTORCHJOB["replica"]


@pytest.mark.parametrize("kind", KINDS)
def test_pods_have_what_was_asked_for(kind: str) -> None:
    """GPUs of any vendor, memory, places, secrets and volumes; time to save before they are killed."""
    spec = pod(kind, *EVERYTHING, "--suspend-grace", "120", "--shutdown-timeout", "10")
    (container,) = spec["containers"]

    assert container["resources"] == {
        "limits": {"amd.com/gpu": 8, "memory": "512Gi"},
        "requests": {"cpu": 64},
    }
    assert (spec["nodeSelector"], spec["hostNetwork"]) == ({"pool": "h100", "zone": "a"}, True)
    assert spec["tolerations"] == [
        {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "spot", "value": "yes"},
    ]
    assert spec["terminationGracePeriodSeconds"] == 135
    folders = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert folders == {"shm": "/dev/shm", "wandb": "/secrets/wandb", "data": "/data"}
    assert {each["name"] for each in spec["volumes"]} == folders.keys()


def test_the_job_is_in_its_queue_and_namespace() -> None:
    """Kueue's label; all objects of a job are found by another."""
    found = objects(*EVERYTHING, "--job-name", "My_Job.1", "train.py")

    assert {each["metadata"]["namespace"] for each in found} == {"ml"}
    assert {each["metadata"]["labels"]["clusterrun/job"] for each in found} == {"my-job-1"}
    assert found[-1]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert found[-1]["spec"]["activeDeadlineSeconds"] == 7200


def test_words_of_the_script_arrive_unchanged() -> None:
    """Kubernetes replaces $(NAME) in a command, and reads $$ as $."""
    words = ("$x", "$$x", "$(CLUSTERRUN_TOKEN)", "$$(CLUSTERRUN_TOKEN)", "a$", "$")
    (container,) = objects("train.py", *words)[-1]["spec"]["template"]["spec"]["containers"]

    command = container["command"][-len(words) :]
    assert [word.replace("$$", "$") for word in command] == list(words)
    assert all(re.fullmatch(r"([^$]|\$\$)*", word) for word in command)


NASTY = (
    *("1e-4", "1e3", "1E5", "0o17", "017", "0x1f", "0b11", ".5e3", "1_000", "12:30:45", "+1", "-0"),
    *("y", "n", "Y", "N", "yes", "No", "on", "off", "true", "False", "null", "~", "", " ", ".inf"),
    *(".nan", "NaN", "=", "<<", "*a", "&a", "!a", "|", ">", "%a", "@a", "`a`", "- a", "? a", ": a"),
    *("a: b", "a #b", "#a", "{a}", "[a]", "a,b", "'", '"', "it's", '"a"', "\\n", "a\nb", "a\tb"),
    *("2026-11-24", "2026-11-24T10:00:00Z", "é", "\u2028", "\ufeff", "\x85", "🙂", "---", "..."),
)
"""Words that a reader of YAML may take for something else."""

SELECTOR = "nodeSelector: {'y': '1e3', '1e3': 'n'}"


@pytest.mark.parametrize("kind", KINDS)
def test_nasty_words_arrive_as_typed(kind: str) -> None:
    """By a reader of YAML 1.1; what readers of other versions might take for no text has quotes."""
    assert len(NASTY) > 60
    text = script(*IMAGE, "--kind", kind, "--directive", SELECTOR, "train.py", *NASTY)

    read = pod_of(list(yaml.safe_load_all(text)), kind)
    assert read["containers"][0]["command"][-len(NASTY) :] == list(NASTY)
    assert read["nodeSelector"] == {"y": "1e3", "1e3": "n"}
    plain = [
        each.value for each in yaml.scan(text) if isinstance(each, yaml.ScalarToken) and each.plain
    ]
    assert [each for each in plain if not re.fullmatch(r"[a-zA-Z]{2,}|\d+|true", each)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_variables_are_in_the_secret_alone(kind: str) -> None:
    """As the job file's are in a file that others cannot read."""
    found = objects("--kind", kind, "--env", "KEY=hush", "--env", "B=$(C)", "train.py")

    assert [each["kind"] for each in found if "hush" in str(each)] == ["Secret"]
    assert found[0]["stringData"]["env"] == "KEY=hush\nB=$(C)"
    [_, env] = pod_of(found, kind)["containers"][0]["env"]
    reference = {"name": "train", "key": "env"}
    assert env == {"name": "CLUSTERRUN_ENV", "valueFrom": {"secretKeyRef": reference}}


def test_each_job_has_a_token_of_its_own() -> None:
    """A secret that another job of the namespace does not know."""
    tokens = {objects("train.py")[0]["stringData"]["token"] for _ in range(2)}

    assert {len(token) for token in tokens} == {64}
    assert len(tokens) == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--nnodes 1", []),
        ("--nnodes 3", ["--nnodes", "3", "--master-addr", "train-0.train"]),
        ("--nnodes 3 --spares 1", ["--nnodes", "3", "--master-addr", "train-0.train"]),
        ("--nnodes 2:4", ["--master-addr", "train-0.train", "--nnodes", "2:4"]),
    ],
)
def test_pods_know_node_zero(words: str, expected: list[str]) -> None:
    """By its name; spares come in addition to --nnodes."""
    command = pod("job", *words.split())["containers"][0]["command"]

    assert command[: len(expected) + 1] == ["clusterrun", *expected]


def test_spares_of_controllers_that_count_pods() -> None:
    """PET_NNODES is the number of all pods, and --nnodes that of those that work."""
    for kind in ("trainjob", "pytorchjob"):
        command = pod(kind, "--nnodes", "3", "--spares", "1")["containers"][0]["command"]
        assert command[:3] == ["clusterrun", "--nnodes", "3"]
    assert objects("--nnodes", "3", "--spares", "1", "train.py")[-1]["spec"]["completions"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--qos high", "--qos: Kubernetes has nothing for qos"),
        ("--mounts /data", "--mounts: Kubernetes has nothing for mounts"),
        ("--constraint h100", "--constraint: Kubernetes has nothing for constraint"),
        ("--directive=x", "--directive: 'x' is not a part of the spec of a pod"),
        ("--account team", "--account: Kubernetes has nothing for account"),
        ("--setup x", "--setup: Kubernetes has nothing for setup"),
        ("--exclusive", "--exclusive: Kubernetes has nothing for exclusive"),
        ("--gpus-per-node h100:8", "--gpus-per-node: Kubernetes has no models of GPUs"),
    ],
)
def test_what_kubernetes_does_not_have(options: str, message: str) -> None:
    """Is refused where it is set, with what to use instead."""
    with pytest.raises(UsageError) as caught:
        script(*IMAGE, *options.split(), "train.py")

    assert caught.value.message == message
    assert caught.value.hint


@pytest.mark.parametrize("text", ["a: [", "- a", "{a, b: c", "a: &a [*a]", "a: 2024-13-01"])
def test_what_is_no_part_of_a_pod(text: str) -> None:
    """With where it was said, and an example."""
    with pytest.raises(
        UsageError, match=r"(?s)^--directive: .* is (not YAML|not a part of the spec)"
    ) as no:
        script(*IMAGE, "--directive", text, "train.py")
    assert "nodeSelector" in no.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("containers: []", "containers is a list of one mapping"),
        ("containers: {tty: true}", "containers is a list of one mapping"),
        ("containers: [{tty: true}, {name: log}]", "containers is a list of one mapping"),
        ("containers: [{env: {A: b}}]", "env is a mapping, where a list is expected"),
        ("volumes: {name: data}", "volumes is a mapping, where a list is expected"),
        ("restartPolicy: [Never]", "restartPolicy is a list, where a single value is expected"),
        ("nodeSelector: {yes: a}", "to YAML, the name of a field is True, which is not a text"),
        ("nodeSelector: {1: a}", "to YAML, the name of a field is 1, which is not a text"),
    ],
)
def test_a_part_of_a_pod_that_cannot_be_merged(text: str, message: str) -> None:
    """It would replace, or mix with, what the job needs."""
    with pytest.raises(UsageError, match=f"^--directive: {re.escape(message)}"):
        script(*IMAGE, "--directive", text, "train.py")


def test_fields_without_a_value_are_not_set() -> None:
    """As in a job file; the job's own volumes stay."""
    plain = pod("job")

    for text in ("volumes:", "containers:", "nodeSelector: {}\ncontainers: [{env: }]"):
        found = pod("job", "--directive", text)
        assert found.pop("nodeSelector", {}) == {}
        assert found == plain


def test_false_asks_for_nothing(folder: Path) -> None:
    """A section for all schedulers may say what is the default."""
    (folder / "job.yaml").write_text("submit:\n  exclusive: false\n")

    assert script(*IMAGE, "--config", "job.yaml", "train.py")


def test_a_directive_is_yaml_in_the_job_file(folder: Path) -> None:
    """As a mapping of its own, or as the text of one; equal to the same on the command line."""
    part = "nodeSelector:\n      pool: '1e3'"
    mapping = f"kubernetes:\n  directive:\n    {part}\n"
    text = f"kubernetes:\n  directive: |\n    {part}\n"
    found = []
    for section in (mapping, text):
        (folder / "job.yaml").write_text(f"script: train.py\n{section}")
        found.append(
            pod_of(list(yaml.safe_load_all(script(*IMAGE, "--config", "job.yaml"))), "job")
        )

    typed = pod("job", "--directive", "nodeSelector: {pool: '1e3'}")
    assert found == [typed, typed]


def test_an_image_is_needed() -> None:
    """Pods see no folder of this machine."""
    with pytest.raises(UsageError, match="Kubernetes runs images"):
        script("--to", "kubernetes", "--gpus-per-node", "1", "train.py")


def test_the_id_has_namespace_kind_and_name() -> None:
    """The job is the last object; the namespace is that of --namespace."""
    printed = "secret/train created\nservice/train created\njob.batch/train created\n"
    job = submission(*IMAGE, "train.py")
    elsewhere = submission(*IMAGE, "--namespace", "ml", "train.py")

    assert KUBERNETES.read_id(printed, job) == "job/train"
    assert KUBERNETES.read_id(printed, elsewhere) == "ml/job/train"


FAILED = {
    "type": "Failed",
    "status": "True",
    "reason": "PodFailurePolicy",
    "message": (
        "Container train for pod ml/train-1-x failed with exit code 9 matching FailJob rule at"
        " index 1"
    ),
}


@pytest.mark.parametrize(
    ("status", "phase", "words", "code"),
    [
        ({}, JobPhase.WAITING, "Pending", 0),
        ({"active": 2, "ready": 1}, JobPhase.WAITING, "1 pods ready", 0),
        ({"active": 2, "ready": 2}, JobPhase.RUNNING, "2 pods ready", 0),
        ({"active": 2, "ready": 0}, JobPhase.WAITING, "Pending", 0),
        ({"replicatedJobsStatus": [{"ready": 1}]}, JobPhase.RUNNING, "Running", 0),
        ({"jobsStatus": [{"name": "node", "ready": 0}]}, JobPhase.WAITING, "Pending", 0),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, JobPhase.ENDED, "Complete", 0),
        ({"conditions": [{"type": "Running", "status": "True"}]}, JobPhase.RUNNING, "Running", 0),
        ({"conditions": [FAILED]}, JobPhase.ENDED, "Failed (PodFailurePolicy)", 9),
        (
            {"conditions": [{**FAILED, "reason": "DeadlineExceeded", "message": ""}]},
            *(JobPhase.ENDED, "Failed (DeadlineExceeded)", 124),
        ),
        (
            {"conditions": [{**FAILED, "message": ""}]},
            JobPhase.ENDED,
            "Failed (PodFailurePolicy)",
            1,
        ),
        (
            {"conditions": [{"type": "Suspended", "status": "True"}]},
            JobPhase.WAITING,
            "Suspended",
            0,
        ),
    ],
)
def test_states(status: dict[str, Any], phase: JobPhase, words: str, code: int) -> None:
    """Of the conditions that the controllers set; the exit code is in the message."""
    found = {"spec": {"parallelism": 2} if "ready" in status else {}, "status": status}

    assert read_status("job/train", found) == JobState("job/train", phase, words, code)


def test_kubectl_is_asked_for_the_job() -> None:
    """By namespace, kind and name."""
    asked: list[object] = []

    def ask(words: object) -> Answer:
        asked.append(words)
        return Answer('{"status": {"active": 1}}', "", 0)

    cancel(KUBERNETES, "ml/trainjob/train", ask)

    assert asked == [
        ["kubectl", "get", "--namespace=ml", "trainjob/train", "--output=json"],
        (
            *("kubectl", "delete", "--namespace=ml", "trainjob,trainingruntime,secret"),
            "--selector=clusterrun/job=train",
        ),
    ]


def test_answers_of_kubectl_without_a_job() -> None:
    """One that was deleted, and a server that is not there."""
    gone = Answer("", 'Error from server (NotFound): jobs.batch "train" not found', 1)
    down = Answer("", "The connection to the server was refused", 1)

    assert KUBERNETES.states
    assert KUBERNETES.states("job/train", lambda _words: gone) == ()
    with pytest.raises(NoSchedulerAnswer, match="refused"):
        KUBERNETES.states("job/train", lambda _words: down)


def test_kubectl_shows_what_pods_print() -> None:
    """Of all pods, each line with its pod."""
    words = KUBERNETES.show("ml/job/train")

    assert words[:4] == ("kubectl", "logs", "--namespace=ml", "--selector=clusterrun/job=train")
