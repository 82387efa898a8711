"""The Job of Kubernetes that all kinds but PyTorchJob stand on: a pod for each node, by its index."""

from clusterrun.domain.submissions.submission import Submission
from clusterrun.errors import ExitCode, exit_code_of_signal
from clusterrun.submitting.manifests.pod import Object

STARTED_AGAIN = (int(ExitCode.NODE_LOST), exit_code_of_signal(15))
"""Exit codes of agents that end because another pod was lost or evicted: all pods start again."""

LOSSES_PER_NODE = 2
"""How often pods may end that way, on average, before the job has failed."""


def indexed_job(job: Submission, template: Object) -> Object:
    """Return the ``spec`` of the Job."""
    limit = job.time.value
    return {
        "completionMode": "Indexed",
        "completions": job.nodes.value,
        "parallelism": job.nodes.value,
        "backoffLimit": LOSSES_PER_NODE * job.nodes.value,
        **({"activeDeadlineSeconds": limit} if limit is not None else {}),
        "podFailurePolicy": {"rules": _rules(job)},
        "template": template,
    }


def _rules(job: Submission) -> list[Object]:
    """Return what a pod's end means for the job; the first rule that fits holds."""
    suspended = int(_option(job, "--suspend-exit-code") or ExitCode.SUSPENDED)
    evicted = [{"type": "DisruptionTarget", "status": "True"}]
    again = [*STARTED_AGAIN, suspended] if job.requeue.value else [*STARTED_AGAIN]
    ignored: list[Object] = [{"action": "Ignore", "onPodConditions": evicted}]
    if job.requeue.value:
        ignored.append(
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [suspended]}}
        )
    own = {"operator": "NotIn", "values": sorted(again)}
    return [*ignored, {"action": "FailJob", "onExitCodes": own}]


def _option(job: Submission, flag: str) -> str:
    """Return the value of an option of the job; "" if it is not set."""
    return next((option[1] for option in job.command.options if option[0] == flag), "")
