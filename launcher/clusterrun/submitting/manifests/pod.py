"""The pod that runs one agent of a job, the same for all kinds of objects around it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from clusterrun.domain.submissions.submission import Submission
from clusterrun.job.sources import ENV_VARIABLE
from clusterrun.submitting.shell import memory

Object = dict[str, Any]
"""Of Kubernetes: what YAML can hold."""

LONGEST_NAME = 40
"""Characters, of the 63 of a DNS label; pods and Kubeflow's objects have longer names."""

LABEL = "clusterrun/job"

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the pod's own


def object_name(job: Submission) -> str:
    """Return the job's name as a DNS label: small letters, digits and -."""
    plain = re.sub(r"[^a-z0-9]+", "-", job.job_name.value.lower()).strip("-")
    # A service's name begins with a letter.
    return (plain if plain[:1].isalpha() else f"job-{plain}")[:LONGEST_NAME].strip("-")


def metadata(job: Submission, name: str = "", **labels: str) -> Object:
    namespace = job.pods.namespace.value
    return {
        "name": name or object_name(job),
        **({"namespace": namespace} if namespace else {}),
        "labels": {LABEL: object_name(job), **labels},
    }


def token_secret(job: Submission) -> Object:
    """Return the Secret with the token of the job's agents, and the variables of its workers."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job),
        "stringData": {
            "token": job.pods.token,
            **({"env": job.command.env} if job.command.env else {}),
        },
    }


def pod_template(job: Submission, container: str, *options: str) -> Object:
    """Return the template of the pods.

    Args:
        job: what runs.
        container: its name, which some controllers look for.
        options: of clusterrun, on top of the job's own.

    """
    return {
        "metadata": {"labels": {LABEL: object_name(job)}},
        "spec": {
            "restartPolicy": "Never",
            # SIGTERM, then time for all ranks to save.
            "terminationGracePeriodSeconds": int(job.pods.grace),
            **_placement(job),
            "containers": [_container(job, container, options)],
            "volumes": list(_volumes(job)),
        },
    }


def _placement(job: Submission) -> Object:
    selector = dict(job.pods.node_selector.value)
    tolerations = [
        {
            "key": each.key,
            **({"value": each.value} if each.value else {"operator": "Exists"}),
            **({"effect": each.effect} if each.effect else {}),
        }
        for each in job.pods.tolerations.value
    ]
    found = {"nodeSelector": selector, "tolerations": tolerations}
    return {name: value for name, value in found.items() if value}


def _container(job: Submission, name: str, options: tuple[str, ...]) -> Object:
    own = [word for option in (*job.command.options, *_workers(job)) for word in option]
    words = (*job.command.launcher, *options, *own, *job.command.words)
    secret = {"CLUSTERRUN_TOKEN": "token", **({ENV_VARIABLE: "env"} if job.command.env else {})}
    return {
        "name": name,
        "image": job.image.value,
        "command": [_literal(word) for word in words],
        "env": [
            {
                "name": name,
                "valueFrom": {"secretKeyRef": {"name": object_name(job), "key": key}},
            }
            for name, key in secret.items()
        ],
        "resources": dict(_resources(job)),
        "volumeMounts": list(_mounts(job)),
    }


def _literal(word: str) -> str:
    """Return ``word`` so that Kubernetes replaces nothing in it.

    It reads $(NAME) as a variable and $$ as $ (k8s.io/kubernetes/third_party/forked/golang/expansion).
    """
    return word.replace("$", "$$")


def _workers(job: Submission) -> Iterator[tuple[str, str]]:
    """Yield the number of workers, which some controllers would set to that of the CPUs."""
    if not any(option[0] == "--nproc-per-node" for option in job.command.options):
        yield ("--nproc-per-node", str(job.units or 1))


def _resources(job: Submission) -> Iterator[tuple[str, Mapping[str, Any]]]:
    gpus = job.gpus_per_node.value
    limits: Object = {}
    if gpus and gpus.number:
        limits[job.pods.gpu_resource.value] = gpus.number
    if job.memory is not None:
        limits["memory"] = f"{memory(job.memory)}i"
    if limits:
        yield "limits", limits
    # A limit of CPUs would throttle a pod whose node is idle.
    if job.cpus is not None:
        yield "requests", {"cpu": job.cpus}


def _mounts(job: Submission) -> Iterator[Object]:
    # Docker's 64 MB are too few for data loaders and NCCL.
    yield {"name": "shm", "mountPath": SHARED_MEMORY}
    for each in job.pods.secrets.value:
        yield {"name": f"secret-{each.name}", "mountPath": each.folder, "readOnly": True}
    for each in job.pods.claims.value:
        yield {"name": f"claim-{each.name}", "mountPath": each.folder}


def _volumes(job: Submission) -> Iterator[Object]:
    yield {"name": "shm", "emptyDir": {"medium": "Memory"}}
    for each in job.pods.secrets.value:
        yield {"name": f"secret-{each.name}", "secret": {"secretName": each.name}}
    for each in job.pods.claims.value:
        claim = {"claimName": each.name}
        yield {"name": f"claim-{each.name}", "persistentVolumeClaim": claim}
