"""Simulated controllers of Kubernetes, on the hosts of a test.

Pods are processes in network namespaces, with exactly the command, variables, files and DNS names
that the objects give them. The controllers follow their documentation: Jobs
(kubernetes.io/docs/concepts/workloads/controllers/job), JobSet (jobset.sigs.k8s.io), Kubeflow's
Trainer (kubeflow.org/docs/components/trainer).
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.contract.launched import COMMAND, Ended
from tests.hosts.host import Host

Object = Mapping[str, Any]

SECONDS_OF_A_POD = 120.0

MAX_ROUNDS = 5
"""How often pods are created before a test fails."""

EVICTED_AFTER = "to be evicted"

# The pod's host name and shared memory; the test's Host has its namespaces.
BECOME_POD = 'hostname "$0" && mount -t tmpfs none /dev/shm && exec "$@"'


@dataclass(frozen=True)
class Pod:
    """One pod, as created from a template."""

    hostname: str
    dns_name: str
    """As other pods of the namespace resolve it."""
    command: tuple[str, ...]
    environ: Mapping[str, str]


@dataclass(frozen=True)
class PodJob:
    """The pods of a job, and the rules for their failures."""

    pods: tuple[Pod, ...]
    rules: Sequence[Object]
    """Of its podFailurePolicy; the first one that matches applies."""
    backoff_limit: int


@dataclass
class Result:
    """The result of a job."""

    condition: str
    """As in the status of a Job: ``Complete``, or ``Failed`` and the reason."""
    rounds: list[list[Ended]] = field(default_factory=list)
    """The results of the pods, by index, each time that they were created."""
    failures: int = 0
    """Failures that count against the backoffLimit."""


def read_manifest(text: str) -> PodJob:
    """Return the job of a manifest."""
    objects = list(yaml.safe_load_all(text))
    job = objects[-1]
    return _CONTROLLERS[job["kind"]](job, objects)


def run(
    job: PodJob, hosts: Sequence[Host], folder: Path, path: str, *, evicted: int | None = None
) -> Result:
    """Run the pods, each on a host, until the Job controller calls the job complete or failed.

    Args:
        job: with as many pods as ``hosts``, or fewer.
        hosts: where they run.
        folder: the working directory of the image.
        path: its PATH.
        evicted: the index of a pod that is evicted once it has printed ``EVICTED_AFTER``, the first
            time that it runs; None for no pod.

    """
    names = {pod.dns_name: host.address for pod, host in zip(job.pods, hosts, strict=False)}
    lines = [f"{address} {name} {name.partition('.')[0]}" for name, address in names.items()]
    for host in hosts:
        host.set_hosts_file("\n".join(["127.0.0.1 localhost", "::1 localhost", *lines, ""]))
    result = Result("")
    waiting = dict(enumerate(zip(job.pods, hosts, strict=False)))
    while len(result.rounds) < MAX_ROUNDS:
        jobs = {
            index: host.start(
                *("sh", "-c", BECOME_POD, pod.hostname, *pod.command),
                environ={**pod.environ, "PATH": path, "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
                folder=folder,
            )
            for index, (pod, host) in waiting.items()
        }
        evicted_now = evicted if not result.rounds else None
        if evicted_now is not None:
            # As the kubelet: SIGTERM, and the grace period of the pod begins.
            jobs[evicted_now].wait_for(EVICTED_AFTER)
            jobs[evicted_now].signal(signal.SIGTERM)
        ends = {index: started.ended(SECONDS_OF_A_POD) for index, started in jobs.items()}
        result.rounds.append(list(ends.values()))
        actions = {
            index: _action(job, end.code, is_evicted=index == evicted_now)
            for index, end in ends.items()
        }
        result.failures += sum(action == "Count" for action in actions.values())
        waiting = {n: it for n, it in waiting.items() if actions[n] != "Succeeded"}
        if "FailJob" in actions.values():
            result.condition = "Failed PodFailurePolicy"
        elif result.failures > job.backoff_limit:
            result.condition = "Failed BackoffLimitExceeded"
        elif not waiting:
            result.condition = "Complete"
        if result.condition:
            return result
    raise AssertionError(f"no end after {MAX_ROUNDS} rounds: {result}")


def _action(job: PodJob, code: int, *, is_evicted: bool) -> str:
    """Return the action for a pod's exit code; an evicted pod has the condition DisruptionTarget."""
    if code == 0:
        return "Succeeded"
    # A container that is killed by a signal has 128 + N.
    status = 128 - code if code < 0 else code
    for rule in job.rules:
        conditions = [each["type"] for each in rule.get("onPodConditions", ())]
        if is_evicted and "DisruptionTarget" in conditions:
            return str(rule["action"])
        on_code = rule.get("onExitCodes")
        if on_code and (status in on_code["values"]) is (on_code["operator"] == "In"):
            return str(rule["action"])
    return "Count"


def _jobset(job: Object, objects: Sequence[Object]) -> PodJob:
    return _job_of_set(job["metadata"]["name"], job["spec"], objects, {})


def _trainjob(job: Object, objects: Sequence[Object]) -> PodJob:
    name, spec = job["metadata"]["name"], job["spec"]
    reference = spec["runtimeRef"]
    (runtime,) = [
        each
        for each in objects
        if each["kind"] == reference["kind"] and each["metadata"]["name"] == reference["name"]
    ]
    assert "torch" in runtime["spec"]["mlPolicy"]
    variables = {
        "PET_NNODES": str(spec["trainer"]["numNodes"]),
        "PET_NPROC_PER_NODE": "auto",
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }
    return _job_of_set(name, runtime["spec"]["template"]["spec"], objects, variables)


def _job_of_set(
    name: str, spec: Object, objects: Sequence[Object], variables: Mapping[str, str]
) -> PodJob:
    (replicated,) = spec["replicatedJobs"]
    assert spec["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    job_name = f"{name}-{replicated['name']}-0"
    return _indexed(job_name, name, replicated["template"]["spec"], objects, variables)


def _indexed(
    name: str, subdomain: str, spec: Object, objects: Sequence[Object], variables: Mapping[str, str]
) -> PodJob:
    assert (spec["completionMode"], spec["parallelism"]) == ("Indexed", spec["completions"])

    def pods() -> Iterator[Pod]:
        for index in range(spec["completions"]):
            rank = {"PET_NODE_RANK": str(index)} if variables else {}
            own = {"JOB_COMPLETION_INDEX": str(index), **variables, **rank}
            hostname = f"{name}-{index}"
            template = spec["template"]
            yield _pod(hostname, f"{hostname}.{subdomain}", template, objects, own)

    return PodJob(tuple(pods()), spec["podFailurePolicy"]["rules"], spec["backoffLimit"])


def _pod(
    hostname: str,
    dns_name: str,
    template: Object,
    objects: Sequence[Object],
    variables: Mapping[str, str],
) -> Pod:
    (container,) = template["spec"]["containers"]
    secrets = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Secret"}
    environ = dict(variables)
    for each in container["env"]:
        reference = each["valueFrom"]["secretKeyRef"]
        environ[each["name"]] = secrets[reference["name"]]["stringData"][reference["key"]]
    # Kubernetes replaces $(NAME), and reads $$( as $(.
    program, *words = (word.replace("$$(", "$(") for word in container["command"])
    assert program == Path(COMMAND).name
    return Pod(hostname, dns_name, (program, *words), environ)


_CONTROLLERS = {
    "JobSet": _jobset,
    "TrainJob": _trainjob,
}
