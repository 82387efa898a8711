"""Options that a scheduler has nothing for."""

from collections.abc import Mapping

from clusterrun.domain.submissions.submission import Submission
from clusterrun.errors import UsageError
from clusterrun.job.declaring import Fact


def refuse(job: Submission, title: str, hints: Mapping[str, str]) -> None:
    """Check that no option is set that the scheduler ``title`` has nothing for.

    Args:
        job: what is asked for.
        title: the scheduler's name, for the message.
        hints: fields of a job that must not be set, and what to type instead; "" for nothing.

    Raises:
        UsageError: one is set; the message begins with where.

    """
    for name, hint in hints.items():
        value = getattr(job, name)
        facts = value if isinstance(value, tuple) else (value,)
        for fact in facts:
            if isinstance(fact, Fact) and fact.value and fact.origin != "default":
                raise UsageError(
                    f"{fact.origin}: {title} has nothing for {name}", hint or "leave it out"
                )


def expect_cpus(job: Submission, title: str) -> None:
    """Check that the CPUs of a node are known: the scheduler ``title`` would give a job one.

    Raises:
        UsageError: they are not.

    """
    if job.cpus is None:
        raise UsageError(
            f"how many CPUs has each node of the job? {title} gives it one unless it is asked for more",
            "type --cpus-per-gpu N, and --gpus-per-node N if that is not set",
        )
