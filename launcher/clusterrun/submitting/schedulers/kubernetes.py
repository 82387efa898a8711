"""Kubernetes: manifests for kubectl; a pod is a node of the job."""

import json
import sys
from collections.abc import Mapping, Sequence
from shutil import which
from typing import Any, ClassVar

from clusterrun.domain.submissions.job_state import JobState, Phase
from clusterrun.domain.submissions.submission import Submission
from clusterrun.errors import UsageError
from clusterrun.submitting import kubernetes_client
from clusterrun.submitting.asking import Answer
from clusterrun.submitting.manifests.kinds import objects
from clusterrun.submitting.manifests.pod import LABEL
from clusterrun.submitting.refusals import refuse
from clusterrun.submitting.scheduler import Ask, NoAnswer, Scheduler

HEAD = """\
# Written by clusterrun submit. Edit it as you like; to submit it: kubectl create -f FILE
# To remove it, its Secret included: kubectl delete {kinds} -l {label}
# The Secret has the token of the job's agents: keep this file as you keep a password.
"""

KINDS = {
    "job": "job,service,secret",
    "jobset": "jobset,secret",
    "trainjob": "trainjob,trainingruntime,secret",
    "pytorchjob": "pytorchjob,secret",
}

NOTHING_FOR = {
    "array": "submit once for each number",
    "dependency": "",
    "account": "put it into the section of another scheduler",
    "qos": "put it into the section of another scheduler",
    "constraint": "type --node-selector KEY=VALUE",
    "exclusive": "type --gpus-per-node with all GPUs of a node",
    "signal": "use --suspend-before, or a time limit of the job's own",
    "output": "kubectl logs has what pods print; for files, type --log-dir",
    "error": "kubectl logs has what pods print; for files, type --log-dir",
    "mounts": "type --claims NAME:/FOLDER",
    "modules": "build them into the image",
    "setup": "build it into the image",
    "directive": "type --print, and edit the manifest",
}

ALL_PODS = "--max-log-requests=1000"
"""kubectl shows no more than five unless it is asked."""

POD_OUTPUT = "clusterrun.submitting.pod_output"
"""The program that shows the same without kubectl."""

ENDED_WELL = {"Complete", "Completed", "Succeeded"}
FAILED = {"Failed", "FailureTarget"}
TIME_LIMIT = 124
"""As timeout(1) has it."""


class Kubernetes(Scheduler):
    """kubectl."""

    name = "kubernetes"
    title = "Kubernetes"
    has_secrets = True
    check = ("kubectl", "create", "--dry-run=server", "-f", "-")
    submit = ("kubectl", "create", "-f", "-")
    blamed: ClassVar = {
        "already exists": ("job_name",),
        "namespace": ("namespace",),
        "no matches for kind": ("kind",),
        "quota": ("gpus_per_node", "memory_per_gpu", "cpus_per_gpu", "nodes"),
    }

    def ask(self, words: Sequence[str], environ: Mapping[str, str], stdin: str = "") -> Answer:
        """Run kubectl or, without it, do the same by Kubernetes' client for Python."""
        if _has_kubectl(environ) or not kubernetes_client.is_installed():
            return super().ask(words, environ, stdin)
        return kubernetes_client.answer(words, environ, stdin)

    def script(self, job: Submission) -> str:
        """Return the manifest: objects in YAML, the job last."""
        refuse(job, self.title, NOTHING_FOR)
        if not job.image.value:
            raise UsageError(
                "Kubernetes runs images, and none is set",
                "type --image IMAGE, with clusterrun and SCRIPT in it",
            )
        gpus = job.gpus_per_node
        if gpus.value is None:
            raise UsageError(
                f"{gpus.origin}: Kubernetes has nothing for exclusive",
                "type --gpus-per-node with all GPUs of a node",
            )
        if gpus.value.model:
            raise UsageError(
                f"{gpus.origin}: Kubernetes has no models of GPUs",
                f"type --gpus-per-node {gpus.value.number}, and --node-selector for the model",
            )
        return manifest(job)

    def read_id(self, printed: str, job: Submission) -> str:
        # "secret/train created", and so on; the job is the last.
        kind, _, name = printed.strip().splitlines()[-1].partition(" ")[0].partition("/")
        namespace = job.pods.namespace.value
        return "/".join(filter(None, (namespace, kind.partition(".")[0], name)))

    def states(self, job_id: str, ask: Ask) -> tuple[JobState, ...]:
        answer = ask(["kubectl", "get", *_named(job_id), "--output=json"])
        if answer.code == 0:
            return (read_status(job_id, json.loads(answer.out)),)
        if "NotFound" in answer.trouble:
            return ()
        raise NoAnswer(answer.trouble)

    def show_output(self, job_id: str, environ: Mapping[str, str]) -> tuple[str, ...]:
        *where, name = _named(job_id)
        label = f"{LABEL}={name.partition('/')[2]}"
        if not _has_kubectl(environ) and kubernetes_client.is_installed():
            namespace = job_id.split("/", maxsplit=1)[0] if where else ""
            kubeconfig = environ.get("KUBECONFIG", "")
            return (sys.executable, "-m", POD_OUTPUT, namespace, label, kubeconfig)
        labels = f"--selector={label}"
        return ("kubectl", "logs", *where, labels, "--follow", "--prefix", "--tail=-1", ALL_PODS)

    def cancel(self, job_id: str) -> tuple[str, ...]:
        *where, name = _named(job_id)
        kind, _, plain = name.partition("/")
        kinds = KINDS.get(kind, kind)
        return ("kubectl", "delete", *where, kinds, f"--selector={LABEL}={plain}")


def _has_kubectl(environ: Mapping[str, str]) -> bool:
    return which("kubectl", path=environ.get("PATH", "")) is not None


def manifest(job: Submission) -> str:
    """Return the objects of ``job`` in YAML."""
    # Few commands write one.
    import yaml

    found = objects(job)
    head = HEAD.format(
        kinds=KINDS[job.pods.kind.value.value], label=f"{LABEL}={found[-1]['metadata']['name']}"
    )

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, _data: object) -> bool:
            """Write equal parts out: people edit one of them."""
            return True

        def represent_text(self, text: str) -> yaml.ScalarNode:
            return self.represent_scalar("tag:yaml.org,2002:str", text, style="'")

    Dumper.add_representer(_Text, Dumper.represent_text)
    documents = (
        yaml.dump(_quoted(each), Dumper=Dumper, sort_keys=False, width=100) for each in found
    )
    return head + "---\n".join(documents)


class _Text(str):
    """A text that is written in quotes: to kubectl's reader 1e3, 0o17 and y are none without."""

    __slots__ = ()


def _quoted(part: object) -> object:
    """Return a part of an object with all texts in quotes, except the names of fields."""
    match part:
        case str():
            return _Text(part)
        case dict():
            return {
                name if name.isalpha() and len(name) > 1 else _Text(name): _quoted(value)
                for name, value in part.items()
            }
        case list():
            return [_quoted(each) for each in part]
        case _:
            return part


def read_status(job_id: str, found: Mapping[str, Any]) -> JobState:
    """Read the conditions of a Job, a JobSet, a TrainJob or a PyTorchJob."""
    status = found.get("status", {})
    holds = [each for each in status.get("conditions", []) if each.get("status") == "True"]
    for condition in holds:
        if condition["type"] in ENDED_WELL:
            return JobState(job_id, Phase.ENDED, condition["type"])
        if condition["type"] in FAILED:
            reason = condition.get("reason", "")
            return JobState(job_id, Phase.ENDED, f"Failed ({reason})", _exit_code(condition))
    ready, all_pods = _ready(found)
    # A JobSet and a TrainJob count the Jobs of which all pods are ready.
    inner = [*status.get("replicatedJobsStatus", []), *status.get("jobsStatus", [])]
    runs = any(each["type"] == "Running" for each in holds) or any(
        each.get("ready") for each in inner
    )
    if ready or runs:
        words = f"{ready} pods ready" if ready else "Running"
        # Before all pods have started, there is nothing to show of some.
        return JobState(job_id, Phase.RUNNING if ready >= all_pods else Phase.WAITING, words)
    return JobState(job_id, Phase.WAITING, holds[-1]["type"] if holds else "Pending")


def _ready(found: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many pods are ready, and how many there are to be; 0 if the kind does not say."""
    pods = found.get("spec", {}).get("parallelism", 0)
    return found.get("status", {}).get("ready", 0), pods


def _exit_code(condition: Mapping[str, Any]) -> int:
    if condition.get("reason") == "DeadlineExceeded":
        return TIME_LIMIT
    # "Container train for pod default/train-1-x failed with exit code 9 matching FailJob rule".
    _, _, rest = condition.get("message", "").partition("exit code ")
    code = rest.split(" ")[0]
    return int(code) if code.isdigit() else 1


def _named(job_id: str) -> list[str]:
    """Return the words by which kubectl finds ``[NAMESPACE/]KIND/NAME``."""
    *namespace, kind, name = job_id.split("/") if "/" in job_id else ["job", job_id]
    return [*(f"--namespace={each}" for each in namespace[:1]), f"{kind}/{name}"]
