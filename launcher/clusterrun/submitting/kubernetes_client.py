"""What clusterrun needs of kubectl, by Kubernetes' official client: for machines without kubectl.

It reads kubeconfig as kubectl does (``KUBECONFIG``, ``~/.kube/config``), and in a pod its account.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

from clusterrun.submitting.asking import SECONDS_TO_ANSWER, Answer

PACKAGE = "kubernetes"

API_VERSIONS = {
    "secret": ("v1", "Secret"),
    "service": ("v1", "Service"),
    "job": ("batch/v1", "Job"),
    "jobset": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "trainjob": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    "trainingruntime": ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"),
    "pytorchjob": ("kubeflow.org/v1", "PyTorchJob"),
}
"""By the name of a kind on kubectl's command line: its version and kind."""


def is_installed() -> bool:
    """Return whether the client is (the extra ``kubernetes``)."""
    return find_spec(PACKAGE) is not None


def answer(words: Sequence[str], environ: Mapping[str, str], stdin: str = "") -> Answer:
    """Do what ``words``, a command line of kubectl's, asks for; it never raises.

    Args:
        words: one that ``schedulers.kubernetes`` has: create, get or delete.
        environ: has ``KUBECONFIG``, if that is set.
        stdin: the manifest to create.

    """
    # Takes 0.4 s.
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config import ConfigException
    from urllib3.exceptions import HTTPError

    options = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    _, verb, *targets = (word for word in words if not word.startswith("--"))
    try:
        client = connect(environ.get("KUBECONFIG", ""))
        namespace = options.get("namespace") or default_namespace(environ)
        match verb:
            case "create":
                lines = list(_create(client, stdin, namespace, is_dry="dry-run" in options))
            case "get":
                lines = [_get(client, targets[0], namespace)]
            case _:
                name = options["selector"].partition("=")[2]
                lines = list(_delete(client, targets[0].split(","), name, namespace))
    except ApiException as error:
        return Answer("", _refusal(error), 1)
    except ConfigException as error:
        return Answer("", f"kubeconfig cannot be used: {error}", 1)
    except (HTTPError, OSError, ValueError) as error:
        # The reason of an error that ends all tries is the last one's.
        return Answer("", str(getattr(error, "reason", error)), 1)
    return Answer("".join(f"{line}\n" for line in lines), "", 0)


@cache
def connect(kubeconfig: str) -> Any:
    """Return the client for a cluster; ``kubeconfig`` is the file's path, "" for the usual one.

    Raises:
        ConfigException: there is neither a kubeconfig nor an account of a pod.

    """
    from kubernetes.client import ApiClient
    from kubernetes.config import (
        ConfigException,
        load_incluster_config,
        load_kube_config,
    )
    from kubernetes.dynamic import DynamicClient

    try:
        load_kube_config(config_file=kubeconfig or None)
    except ConfigException as error:
        try:
            load_incluster_config()
        except ConfigException:
            raise error from None
    # Its own place for what it finds out of the server is a file in /tmp that anyone may write.
    with TemporaryDirectory() as folder:
        return DynamicClient(ApiClient(), cache_file=f"{folder}/resources.json")


def default_namespace(environ: Mapping[str, str]) -> str:
    """Return the namespace of kubeconfig's context; in a pod, "default"."""
    from kubernetes.config import ConfigException, list_kube_config_contexts

    try:
        _, context = list_kube_config_contexts(config_file=environ.get("KUBECONFIG") or None)
    except ConfigException:
        return "default"
    return str(context["context"].get("namespace", "default"))


def _create(client: Any, manifest: str, namespace: str, *, is_dry: bool) -> Iterator[str]:
    import yaml

    for each in yaml.safe_load_all(manifest):
        kind, version = each["kind"], each["apiVersion"]
        where = each["metadata"].get("namespace", namespace)
        dry = {"dry_run": "All"} if is_dry else {}
        _resource(client, version, kind).create(
            body=each, namespace=where, _request_timeout=SECONDS_TO_ANSWER, **dry
        )
        group = version.rpartition("/")[0]
        yield f"{'.'.join(filter(None, (kind.lower(), group)))}/{each['metadata']['name']} created"


def _get(client: Any, target: str, namespace: str) -> str:
    kind, _, name = target.partition("/")
    found = _resource(client, *_version(kind)).get(
        name=name, namespace=namespace, _request_timeout=SECONDS_TO_ANSWER
    )
    return json.dumps(found.to_dict())


def _delete(client: Any, kinds: Sequence[str], name: str, namespace: str) -> Iterator[str]:
    """Delete the objects of a job, which all have its name."""
    from kubernetes.client.exceptions import ApiException

    for kind in kinds:
        try:
            # Unless it is asked to, the server leaves the pods of a Job running.
            _resource(client, *_version(kind)).delete(
                name=name,
                namespace=namespace,
                body={"propagationPolicy": "Background"},
                _request_timeout=SECONDS_TO_ANSWER,
            )
        except ApiException as error:
            if error.status != 404:
                raise
        else:
            yield f"{kind}/{name} deleted"


def _version(kind: str) -> tuple[str, str]:
    if kind not in API_VERSIONS:
        raise ValueError(f"{kind} is no kind of job")
    return API_VERSIONS[kind]


def _resource(client: Any, version: str, kind: str) -> Any:
    from kubernetes.dynamic.exceptions import ResourceNotFoundError

    try:
        return client.resources.get(api_version=version, kind=kind)
    except ResourceNotFoundError:
        raise ValueError(f'no matches for kind "{kind}" in version "{version}"') from None


def _refusal(error: Any) -> str:
    """Return the server's words, as kubectl has them."""
    try:
        status = json.loads(error.body)
        return f"Error from server ({status['reason']}): {status['message']}"
    except (TypeError, ValueError, KeyError):
        return f"Error from server ({error.reason})"
