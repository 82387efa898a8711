"""Kubernetes: manifests for kubectl, and what it says of them; a pod is a node of the job.

A manifest is made of plain values that YAML can hold: objects, the job itself last.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from clusterrun.clients.submit.request import ManifestKind
from clusterrun.clients.submit.scheduler import (
    Ask,
    JobPhase,
    JobState,
    Manifest,
    NoSchedulerAnswer,
    Scheduler,
    last_line,
)
from clusterrun.clients.submit.shell import memory_text
from clusterrun.clients.submit.submission import Submission
from clusterrun.errors import ExitCode, UsageError, exit_code_of_signal
from clusterrun.job.sources import ENV_VARIABLE, TOKEN_VARIABLE

Object = dict[str, Any]
"""Of Kubernetes: what YAML can hold."""

HEAD = """\
# Written by clusterrun submit. Edit it as you like; to submit it: kubectl create -f FILE
# To remove it, its Secret included: kubectl delete {kinds} -l {label}
# The Secret has the token of the job's agents: keep this file as you keep a password.
"""

MADE = {
    ManifestKind.JOB: "job,service,secret",
    ManifestKind.JOBSET: "jobset,secret",
    ManifestKind.TRAINJOB: "trainjob,trainingruntime,secret",
    ManifestKind.PYTORCHJOB: "pytorchjob,secret",
}
"""What a job of each kind is made of, as kubectl calls it."""

GPUS = "nvidia.com/gpu"
"""What NVIDIA's device plugin calls a GPU; ``--gpus-per-node amd.com/gpu:8`` names another's."""

LABEL = "clusterrun/job"

QUEUE = "kueue.x-k8s.io/queue-name"
"""The label by which Kueue admits a job to a queue."""

TRAINER = "trainer.kubeflow.org/v1alpha1"

ANCESTOR = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
"""By it the Trainer knows the pods whose environment it sets."""

LONGEST_NAME = 40
"""Characters, of the 63 of a DNS label; pods and Kubeflow's objects have longer names."""

STARTED_AGAIN = (int(ExitCode.NODE_LOST), exit_code_of_signal(15))
"""Exit codes of agents that end because another pod was lost or evicted: all pods start again."""

LOSSES_PER_NODE = 2
"""How often pods may end that way, on average, before the job has failed."""


# The manifest


def manifest(job: Submission) -> str:
    """Return the objects of ``job`` in YAML.

    Raises:
        UsageError: Kubernetes has nothing of what is asked for.

    """
    # Few commands write one.
    import yaml

    _expect_possible(job)
    found = [_secret(job), *_KINDS[job.request.kind](job)]
    head = HEAD.format(kinds=MADE[job.request.kind], label=f"{LABEL}={_object_name(job)}")

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


def _expect_possible(job: Submission) -> None:
    if not job.request.image:
        raise UsageError(
            "Kubernetes runs images, and none is set",
            "type --image IMAGE, with clusterrun and SCRIPT in it",
        )
    gpus = job.gpus
    if gpus and gpus.model and "/" not in gpus.model:
        raise UsageError(
            f"{job.origins['gpus_per_node']}: Kubernetes has no models of GPUs",
            f"type --gpus-per-node {gpus.number} --directive='nodeSelector: {{LABEL: {gpus.model}}}'",
        )


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


def _object_name(job: Submission) -> str:
    """Return the job's name as a DNS label: small letters, digits and -."""
    plain = re.sub(r"[^a-z0-9]+", "-", job.job_name.lower()).strip("-")
    # A service's name begins with a letter.
    return (plain if plain[:1].isalpha() else f"job-{plain}")[:LONGEST_NAME].strip("-")


def _metadata(job: Submission, **labels: str) -> Object:
    namespace = job.request.namespace
    return {
        "name": _object_name(job),
        **({"namespace": namespace} if namespace else {}),
        "labels": {LABEL: _object_name(job), **labels},
    }


def _secret(job: Submission) -> Object:
    """Return the Secret with the token of the job's agents, and the variables of its workers."""
    env = {"env": job.command.env} if job.command.env else {}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job),
        "stringData": {"token": job.token, **env},
    }


# The kinds of jobs


def _plain_job(job: Submission) -> list[Object]:
    name = _object_name(job)
    template = _pods(job, "train", *_several(job, f"{name}-0.{name}"))
    template["spec"] = {"subdomain": name, **template["spec"]}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job),
        # Pods have names before they are ready: that is when they look for node 0.
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL: name},
        },
    }
    return [service, _with_queue(job, "batch/v1", "Job", _indexed_job(job, template))]


def _jobset(job: Submission) -> list[Object]:
    name = _object_name(job)
    template = _pods(job, "node", *_several(job, f"{name}-node-0-0.{name}"))
    return [_with_queue(job, "jobset.x-k8s.io/v1alpha2", "JobSet", _set_of(job, template, {}))]


def _trainjob(job: Submission) -> list[Object]:
    # The Trainer sets PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT.
    template = _pods(job, "node", *_without_spares(job))
    runtime = {
        "apiVersion": TRAINER,
        "kind": "TrainingRuntime",
        "metadata": _metadata(job, **{"trainer.kubeflow.org/framework": "torch"}),
        "spec": {
            "mlPolicy": {"numNodes": job.nodes, "torch": {}},
            "template": {"spec": _set_of(job, template, ANCESTOR)},
        },
    }
    reference = {
        "apiGroup": TRAINER.partition("/")[0],
        "kind": "TrainingRuntime",
        "name": _object_name(job),
    }
    spec = {"runtimeRef": reference, "trainer": {"numNodes": job.nodes}}
    return [runtime, _with_queue(job, TRAINER, "TrainJob", spec)]


def _pytorchjob(job: Submission) -> list[Object]:
    # The operator sets PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT.
    # With ExitCode, a pod is started again for a code from 128 on, that of a suspension included.
    options = ("--suspend-exit-code", "138") if job.requeue else ()
    template = _pods(job, "pytorch", *options, *_without_spares(job))
    del template["spec"]["restartPolicy"]
    replicas = {"restartPolicy": "ExitCode" if job.requeue else "Never", "template": template}
    workers = {"Worker": {"replicas": job.nodes - 1, **replicas}} if job.nodes > 1 else {}
    spec = {
        "runPolicy": {"cleanPodPolicy": "Running", **_deadline(job)},
        "pytorchReplicaSpecs": {"Master": {"replicas": 1, **replicas}, **workers},
    }
    return [_with_queue(job, "kubeflow.org/v1", "PyTorchJob", spec)]


_KINDS: Mapping[ManifestKind, Callable[[Submission], list[Object]]] = {
    ManifestKind.JOB: _plain_job,
    ManifestKind.JOBSET: _jobset,
    ManifestKind.TRAINJOB: _trainjob,
    ManifestKind.PYTORCHJOB: _pytorchjob,
}
"""By kind, the objects besides the Secret, in the order in which they are made."""


def _set_of(job: Submission, template: Object, labels: Mapping[str, str]) -> Object:
    """Return the ``spec`` of a JobSet with one Job, which has all pods."""
    inner: Object = {"spec": _indexed_job(job, template)}
    if labels:
        inner = {"metadata": {"labels": dict(labels)}, **inner}
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": inner}],
    }


def _indexed_job(job: Submission, template: Object) -> Object:
    """Return the ``spec`` of a Job with a pod for each node, by its index."""
    return {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": LOSSES_PER_NODE * job.nodes,
        **_deadline(job),
        "podFailurePolicy": {"rules": _rules(job)},
        "template": template,
    }


def _deadline(job: Submission) -> Object:
    limit = job.request.time
    return {} if limit is None else {"activeDeadlineSeconds": limit}


def _rules(job: Submission) -> list[Object]:
    """Return what a pod's end means for the job; the first rule that fits holds."""
    evicted = [{"type": "DisruptionTarget", "status": "True"}]
    rules: list[Object] = [{"action": "Ignore", "onPodConditions": evicted}]
    again = [*STARTED_AGAIN]
    if job.requeue:
        suspended = int(job.command.option("--suspend-exit-code") or ExitCode.SUSPENDED)
        rules.append({"action": "Ignore", "onExitCodes": {"operator": "In", "values": [suspended]}})
        again.append(suspended)
    own = {"operator": "NotIn", "values": sorted(again)}
    return [*rules, {"action": "FailJob", "onExitCodes": own}]


def _several(job: Submission, node_zero: str) -> tuple[str, ...]:
    """Return the options by which the pods of a job find each other."""
    return () if job.nodes == 1 else (*_working(job), "--master-addr", node_zero)


def _working(job: Submission) -> tuple[str, ...]:
    """Return the number of nodes that work; of MIN:MAX, the job's own options have it."""
    is_given = job.command.option("--nnodes") is not None
    return () if is_given else ("--nnodes", str(job.working_nodes))


def _without_spares(job: Submission) -> tuple[str, ...]:
    """Return the number of nodes that work if the controller counts more: PET_NNODES is all pods."""
    return _working(job) if job.working_nodes < job.nodes else ()


def _with_queue(job: Submission, version: str, kind: str, spec: Object) -> Object:
    queue = job.request.partition
    labels = {QUEUE: queue} if queue else {}
    return {"apiVersion": version, "kind": kind, "metadata": _metadata(job, **labels), "spec": spec}


# The pods


def _pods(job: Submission, container: str, *options: str) -> Object:
    """Return the template of the pods, each of which runs one agent.

    Args:
        job: what runs.
        container: its name, which some controllers look for.
        options: of clusterrun, on top of the job's own.

    """
    spec: Object = {
        "restartPolicy": "Never",
        # SIGTERM, then time for all ranks to save.
        "terminationGracePeriodSeconds": int(job.grace),
        "containers": [_container(job, container, options)],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    origin = job.origins.get("directive", "")
    for text in job.request.directive:
        part = _own_part(text, origin)
        of_container = part.pop("containers", [{}])
        _merge(spec, part, origin)
        _merge(spec["containers"][0], of_container[0], origin)
    return {"metadata": {"labels": {LABEL: _object_name(job)}}, "spec": spec}


EXAMPLE = "give, for example, --directive='nodeSelector: {pool: h100}'"


def _own_part(text: str, origin: str) -> Object:
    """Return a part of the pod's spec that the user has written.

    Raises:
        UsageError: it is none.

    """
    import yaml

    try:
        part = _without_empty(yaml.safe_load(text), origin)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: of a date such as 2024-13-01.
        trouble = " ".join(str(error).split())
        raise UsageError(f"{origin}: {text!r} is not YAML: {trouble}", EXAMPLE) from None
    if not isinstance(part, dict):
        raise UsageError(f"{origin}: {text!r} is not a part of the spec of a pod", EXAMPLE)
    containers = part.get("containers", [{}])
    if not isinstance(containers, list) or [*map(type, containers)] != [dict]:
        raise UsageError(
            f"{origin}: containers is a list of one mapping, which is merged with that of the job",
            "give, for example, --directive='containers: [{imagePullPolicy: Always}]'",
        )
    return part


def _without_empty(part: object, origin: str) -> object:
    """Return a part of YAML without fields that have no value: as in a job file, they are not set.

    Raises:
        UsageError: the name of a field is no text.

    """
    match part:
        case dict():
            for name in part:
                if not isinstance(name, str):
                    raise UsageError(
                        f"{origin}: to YAML, the name of a field is {name!r}, which is not a text",
                        "put quotes around the name",
                    )
            return {
                name: _without_empty(value, origin)
                for name, value in part.items()
                if value is not None
            }
        case list():
            return [_without_empty(each, origin) for each in part]
        case _:
            return part


def _merge(into: Object, extra: Object, origin: str) -> None:
    """Add a part: mappings by key, lists at the end.

    Raises:
        UsageError: a field has a value of another shape.

    """
    for name, value in extra.items():
        before = into.get(name, value)
        if _shape(before) != _shape(value):
            raise UsageError(
                f"{origin}: {name} is {_shape(value)}, where {_shape(before)} is expected", EXAMPLE
            )
        if name in into and isinstance(value, dict):
            _merge(into[name], value, origin)
        elif name in into and isinstance(value, list):
            into[name] = [*into[name], *value]
        else:
            into[name] = value


def _shape(value: object) -> str:
    match value:
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return "a single value"


def _container(job: Submission, name: str, options: tuple[str, ...]) -> Object:
    own = [word for option in (*job.command.options, *_workers(job)) for word in option]
    words = (*job.command.launcher, *options, *own, *job.command.words)
    secret = {TOKEN_VARIABLE: "token", **({ENV_VARIABLE: "env"} if job.command.env else {})}
    return {
        "name": name,
        "image": job.request.image,
        "command": [_literal(word) for word in words],
        "env": [
            {
                "name": name,
                "valueFrom": {"secretKeyRef": {"name": _object_name(job), "key": key}},
            }
            for name, key in secret.items()
        ],
        "resources": _resources(job),
        # Docker's 64 MB are too few for data loaders and NCCL.
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - the pod's own
    }


def _literal(word: str) -> str:
    """Return ``word`` so that Kubernetes replaces nothing in it.

    It reads $(NAME) as a variable and $$ as $ (k8s.io/kubernetes/third_party/forked/golang/expansion).
    """
    return word.replace("$", "$$")


def _workers(job: Submission) -> Iterator[tuple[str, str]]:
    """Yield the number of workers, which some controllers would set to that of the CPUs."""
    if job.command.option("--nproc-per-node") is None:
        yield ("--nproc-per-node", str(job.units or 1))


def _resources(job: Submission) -> Object:
    limits: Object = {}
    if job.gpus and job.gpus.number:
        limits[job.gpus.model or GPUS] = job.gpus.number
    if job.memory is not None:
        limits["memory"] = f"{memory_text(job.memory)}i"
    # A limit of CPUs would throttle a pod whose node is idle.
    requests = {} if job.cpus is None else {"cpu": job.cpus}
    found = {"limits": limits, "requests": requests}
    return {name: values for name, values in found.items() if values}


# What kubectl says of a job

ALL_PODS = "--max-log-requests=1000"
"""kubectl shows no more than five unless it is asked."""

ENDED_WELL = {"Complete", "Completed", "Succeeded"}
FAILED = {"Failed", "FailureTarget"}
TIME_LIMIT = 124
"""As timeout(1) has it."""


def read_id(printed: str, job: Submission) -> str:
    """Read ``secret/train created`` and so on; the job is the last."""
    kind, slash, name = last_line(printed).partition(" ")[0].partition("/")
    where = job.request.namespace
    return "/".join(filter(None, (where, kind.partition(".")[0], name))) if slash else ""


def _named(job_id: str) -> list[str]:
    """Return the words by which kubectl finds ``[NAMESPACE/]KIND/NAME``."""
    *namespace, kind, name = job_id.rsplit("/", 2) if "/" in job_id else ["job", job_id]
    return [*(f"--namespace={each}" for each in namespace), f"{kind}/{name}"]


def states(job_id: str, ask: Ask) -> tuple[JobState, ...]:
    answer = ask(["kubectl", "get", *_named(job_id), "--output=json"])
    if answer.code == 0:
        return (read_status(job_id, json.loads(answer.out)),)
    if "NotFound" in answer.trouble:
        return ()
    raise NoSchedulerAnswer(answer.trouble)


def show(job_id: str) -> Sequence[str]:
    *where, name = _named(job_id)
    labels = f"--selector={LABEL}={name.partition('/')[2]}"
    return ("kubectl", "logs", *where, labels, "--follow", "--prefix", "--tail=-1", ALL_PODS)


def cancel(job_id: str) -> Sequence[str]:
    *where, name = _named(job_id)
    kind, _, plain = name.partition("/")
    made = {each.value: kinds for each, kinds in MADE.items()}
    return (
        "kubectl",
        "delete",
        *where,
        made.get(kind.partition(".")[0], kind),
        f"--selector={LABEL}={plain}",
    )


def read_status(job_id: str, found: Mapping[str, Any]) -> JobState:
    """Read the conditions of a Job, a JobSet, a TrainJob or a PyTorchJob."""
    status = found.get("status", {})
    holds = [each for each in status.get("conditions", []) if each.get("status") == "True"]
    for condition in holds:
        if condition["type"] in ENDED_WELL:
            return JobState(job_id, JobPhase.ENDED, condition["type"])
        if condition["type"] in FAILED:
            reason = condition.get("reason", "")
            return JobState(job_id, JobPhase.ENDED, f"Failed ({reason})", _exit_code(condition))
    # How many pods are ready, and how many there are to be; 0 if the kind does not say.
    ready, all_pods = status.get("ready", 0), found.get("spec", {}).get("parallelism", 0)
    # A JobSet and a TrainJob count the Jobs of which all pods are ready.
    inner = [*status.get("replicatedJobsStatus", []), *status.get("jobsStatus", [])]
    runs = any(each["type"] == "Running" for each in holds) or any(
        each.get("ready") for each in inner
    )
    if ready or runs:
        words = f"{ready} pods ready" if ready else "Running"
        # Before all pods have started, there is nothing to show of some.
        return JobState(job_id, JobPhase.RUNNING if ready >= all_pods else JobPhase.WAITING, words)
    return JobState(job_id, JobPhase.WAITING, holds[-1]["type"] if holds else "Pending")


def _exit_code(condition: Mapping[str, Any]) -> int:
    if condition.get("reason") == "DeadlineExceeded":
        return TIME_LIMIT
    # "Container train for pod default/train-1-x failed with exit code 9 matching FailJob rule".
    _, _, rest = condition.get("message", "").partition("exit code ")
    code = rest.split(" ")[0]
    return int(code) if code.isdigit() else 1


KUBERNETES = Scheduler(
    name="kubernetes",
    title="Kubernetes",
    body=Manifest(
        {
            *("job_name", "nnodes", "gpus_per_node", "cpus_per_gpu", "memory_per_gpu", "time"),
            *("partition", "requeue", "image", "directive", "kind", "namespace"),
        },
        manifest,
    ),
    submit=("kubectl", "create", "-f", "-"),
    check=("kubectl", "create", "--dry-run=server", "-f", "-"),
    cancel=cancel,
    see="kubectl get",
    instead={
        "account": "put it into the section of another scheduler",
        "qos": "put it into the section of another scheduler",
        "constraint": "type --directive='nodeSelector: {LABEL: VALUE}'",
        "exclusive": "type --gpus-per-node with all GPUs of a node",
        "mounts": (
            "for a volume, type --directive='{volumes: [{name: data, persistentVolumeClaim:"
            " {claimName: NAME}}], containers: [{volumeMounts: [{name: data, mountPath: /data}]}]}'"
        ),
        "setup": "build it into the image",
    },
    blamed={
        "already exists": ("job_name",),
        "namespace": ("namespace",),
        "no matches for kind": ("kind",),
        "quota": ("gpus_per_node", "memory_per_gpu", "cpus_per_gpu", "nnodes"),
    },
    read_id=read_id,
    states=states,
    show=show,
)
