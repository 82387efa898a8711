"""The objects of each kind of job, in the order in which they are made."""

from collections.abc import Callable, Mapping

from clusterrun.domain.submissions.pods import ManifestKind
from clusterrun.domain.submissions.submission import Submission
from clusterrun.submitting.manifests.job_spec import indexed_job
from clusterrun.submitting.manifests.pod import (
    LABEL,
    Object,
    metadata,
    object_name,
    pod_template,
    token_secret,
)

QUEUE = "kueue.x-k8s.io/queue-name"
"""The label by which Kueue admits a job to a queue."""

TRAINER = "trainer.kubeflow.org/v1alpha1"

ANCESTOR = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
"""By it the Trainer knows the pods whose environment it sets."""


def objects(job: Submission) -> list[Object]:
    """Return the objects of ``job``; the last one is the job itself."""
    return [token_secret(job), *_KINDS[job.pods.kind.value](job)]


def _plain_job(job: Submission) -> list[Object]:
    name = object_name(job)
    template = pod_template(job, "train", *_several(job, f"{name}-0.{name}"))
    template["spec"] = {"subdomain": name, **template["spec"]}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job),
        # Pods have names before they are ready: that is when they look for node 0.
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL: name},
        },
    }
    return [service, _with_queue(job, "batch/v1", "Job", indexed_job(job, template))]


def _jobset(job: Submission) -> list[Object]:
    name = object_name(job)
    template = pod_template(job, "node", *_several(job, f"{name}-node-0-0.{name}"))
    return [_with_queue(job, "jobset.x-k8s.io/v1alpha2", "JobSet", _set_of(job, template, {}))]


def _trainjob(job: Submission) -> list[Object]:
    # The Trainer sets PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT.
    template = pod_template(job, "node", *_without_spares(job))
    runtime = {
        "apiVersion": TRAINER,
        "kind": "TrainingRuntime",
        "metadata": metadata(job, **{"trainer.kubeflow.org/framework": "torch"}),
        "spec": {
            "mlPolicy": {"numNodes": job.nodes.value, "torch": {}},
            "template": {"spec": _set_of(job, template, ANCESTOR)},
        },
    }
    reference = {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "TrainingRuntime",
        "name": object_name(job),
    }
    spec = {"runtimeRef": reference, "trainer": {"numNodes": job.nodes.value}}
    return [runtime, _with_queue(job, TRAINER, "TrainJob", spec)]


def _pytorchjob(job: Submission) -> list[Object]:
    # The operator sets PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT.
    # With ExitCode, a pod is started again for a code from 128 on, that of a suspension included.
    requeue = job.requeue.value
    options = ("--suspend-exit-code", "138") if requeue else ()
    template = pod_template(job, "pytorch", *options, *_without_spares(job))
    del template["spec"]["restartPolicy"]
    replicas = {
        "restartPolicy": "ExitCode" if requeue else "Never",
        "template": template,
    }
    limit = job.time.value
    workers = job.nodes.value - 1
    spec = {
        "runPolicy": {
            "cleanPodPolicy": "Running",
            **({"activeDeadlineSeconds": limit} if limit is not None else {}),
        },
        "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, **replicas},
            **({"Worker": {"replicas": workers, **replicas}} if workers else {}),
        },
    }
    return [_with_queue(job, "kubeflow.org/v1", "PyTorchJob", spec)]


def _set_of(job: Submission, template: Object, labels: Mapping[str, str]) -> Object:
    """Return the ``spec`` of a JobSet with one Job, which has all pods."""
    inner: Object = {"spec": indexed_job(job, template)}
    if labels:
        inner = {"metadata": {"labels": dict(labels)}, **inner}
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": inner}],
    }


def _several(job: Submission, node_zero: str) -> tuple[str, ...]:
    """Return the options by which the pods of a job find each other."""
    if job.nodes.value == 1:
        return ()
    return (*_working(job), "--master-addr", node_zero)


def _working(job: Submission) -> tuple[str, ...]:
    """Return the number of nodes that work; of MIN:MAX, the job's own options have it."""
    given = {option[0] for option in job.command.options}
    return () if "--nnodes" in given else ("--nnodes", str(job.working_nodes))


def _without_spares(job: Submission) -> tuple[str, ...]:
    """Return the number of nodes that work if the controller counts more: PET_NNODES is all pods."""
    return _working(job) if job.working_nodes < job.nodes.value else ()


def _with_queue(job: Submission, version: str, kind: str, spec: Object) -> Object:
    queue = job.partition.value
    labels = {QUEUE: queue} if queue else {}
    return {"apiVersion": version, "kind": kind, "metadata": metadata(job, **labels), "spec": spec}


_KINDS: Mapping[ManifestKind, Callable[[Submission], list[Object]]] = {
    ManifestKind.JOB: _plain_job,
    ManifestKind.JOBSET: _jobset,
    ManifestKind.TRAINJOB: _trainjob,
    ManifestKind.PYTORCHJOB: _pytorchjob,
}
